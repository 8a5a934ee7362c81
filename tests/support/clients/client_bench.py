"""Helpers of the client's tests: noise that the fake server answers, results, a list of tasks."""

from __future__ import annotations

import asyncio

import numpy as np

from tests.support.clients.fake_listen import STEP_BYTES
from tutti_asr_client.messages import Alternative, Channel, Results, StepTimings

WITHIN_S = 10.0  # only a failing test waits that long


def client_tasks() -> list[asyncio.Task[object]]:
    """Return the tasks that run code of the client library."""
    return [task for task in asyncio.all_tasks() if "tutti_asr_client" in task.get_coro().cr_code.co_filename]


def noise(steps: float, seed: int = 0) -> bytes:
    """Return audio of `steps` steps."""
    return np.random.default_rng(seed).integers(-9000, 9000, round(steps * STEP_BYTES / 2), dtype=np.int16).tobytes()


def results(text: str, *, final: bool = False, stable: int | None = None, channel: int = 0) -> Results:
    return Results(
        channel=Channel((Alternative(text),)),
        is_final=final,
        channel_index=(channel, 2),
        tutti=None if stable is None else StepTimings(stable_words=stable),
    )
