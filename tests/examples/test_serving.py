"""Streams awaited on an event loop: order, lateness, failures, streams that end early; each example's command."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from batching import EngineDown, PoolFull, StepFailed
from examples.serving import Serving
from tests.support.servers.fakes import WAIT_S, EchoModel, FailingModel, GatedModel

ROOT = Path(__file__).parents[2]
PATIENT_MS = 1000 * WAIT_S


def row(value: int) -> np.ndarray:
    return np.full(4, value, np.int16)


def run(serving: Serving, act: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving.running():
            await asyncio.wait_for(act(), WAIT_S)

    asyncio.run(main())


def test_steps_are_answered_in_order_with_their_own_state() -> None:
    serving = Serving(EchoModel())

    async def act() -> None:
        first, second = serving.open(PATIENT_MS), serving.open(PATIENT_MS)
        answers = await asyncio.gather(*(stream.step(row(value)) for value in (7, 8) for stream in (first, second)))
        assert [answer.output.tolist() for answer in answers] == [[7, 1], [7, 1], [7, 2], [7, 2]]
        assert not any(answer.late for answer in answers)
        again = await first.step(row(9), reset=True)
        assert again.output.tolist() == [9, 1]

    run(serving, act)
    assert serving.largest_batch in {1, 2}


def test_an_answer_after_the_deadline_is_late() -> None:
    model = GatedModel()
    serving = Serving(model)

    async def act() -> None:
        stream = serving.open(1)
        answer = asyncio.ensure_future(stream.step(row(1)))
        await asyncio.to_thread(model.wait_inside)
        loop = asyncio.get_running_loop()
        loop.call_later(0.002, model.go_on)  # after the deadline of 1 ms
        assert (await answer).late

    run(serving, act)


def test_a_stream_beyond_the_capacity_fails_and_the_others_run() -> None:
    serving = Serving(EchoModel(capacity=1))

    async def act() -> None:
        first, second = serving.open(PATIENT_MS), serving.open(PATIENT_MS)
        for _ in range(2):  # while the failure is on its way, and afterwards
            with pytest.raises(PoolFull):
                await second.step(row(2))
        second.close()
        assert (await first.step(row(1))).output.tolist() == [1, 1]
        first.close()
        third = serving.open(PATIENT_MS)
        assert (await third.step(row(3))).output.tolist() == [3, 1]

    run(serving, act)


def test_a_failed_step_ends_its_stream_alone() -> None:
    serving = Serving(FailingModel())

    async def act() -> None:
        first, second = serving.open(PATIENT_MS), serving.open(PATIENT_MS)
        with pytest.raises(StepFailed):
            await first.step(row(FailingModel.POISON))
        assert (await second.step(row(2))).output.tolist() == [2, 1]

    run(serving, act)


def test_a_canceled_caller_leaves_the_next_answer_to_its_own_step() -> None:
    model = GatedModel()
    serving = Serving(model)

    async def act() -> None:
        stream = serving.open(PATIENT_MS)
        left = asyncio.ensure_future(stream.step(row(1)))
        await asyncio.to_thread(model.wait_inside)
        left.cancel()
        model.go_on(2)
        assert (await stream.step(row(2))).output.tolist() == [1, 2]

    run(serving, act)


def test_steps_that_a_stopped_engine_has_not_run_fail() -> None:
    model = GatedModel()
    serving = Serving(model)

    async def act() -> None:
        stream = serving.open(PATIENT_MS)
        steps = [asyncio.ensure_future(stream.step(row(value))) for value in (1, 2)]
        await asyncio.to_thread(model.wait_inside)
        with pytest.raises(EngineDown):
            serving.engine.stop(timeout_s=0)  # the first step runs on
        model.go_on()
        assert (await steps[0]).output.tolist() == [1, 1]
        for step in (steps[1], stream.step(row(3))):
            with pytest.raises(EngineDown):
                await step

    run(serving, act)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("typing_suggestions", "good m "),
        pytest.param("captions", "200 captions", marks=pytest.mark.slow),
        pytest.param("forecast", "240000 forecasts of 4000 devices", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(300)
def test_the_command_of_the_page_runs(example: str, said: str) -> None:
    command = f"python -m examples.{example} --demo"
    assert command in (ROOT / "docs" / "own-models.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
