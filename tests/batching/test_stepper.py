"""The stepper: inputs of any memory layout reach the model, and faults affect their batch only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from batching.errors import StepFailed
from batching.stepper import WARM_RUNS, Stepper
from tests.support.servers.fakes import EchoModel, FakeClock


def inputs(*values: int) -> list[np.ndarray]:
    """One step of each stream, identified by its value."""
    return [np.full(4, value, dtype=np.int16) for value in values]


def test_inputs_may_be_views_with_gaps() -> None:
    stepper = Stepper(EchoModel())
    gaps = np.arange(8, dtype=np.int16)[1::2]
    assert stepper.run([stepper.pool.take()], [gaps]).tolist() == [[1, 1]]


def test_a_wrong_number_of_output_rows_is_a_failed_step() -> None:
    class Long(EchoModel):
        def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
            return np.zeros((len(slots) + 1, 2), np.int64)

    stepper = Stepper(Long())
    with pytest.raises(StepFailed, match="returned 2 rows for 1 rows of input"):
        stepper.run([stepper.pool.take()], inputs(1))


def test_a_model_that_lists_its_sizes_is_warmed_up_at_these_and_long_runs_are_timed_once() -> None:
    clock = FakeClock()

    class ListingSizes(EchoModel):
        warmup_sizes = (1, 4, 5)

        def warm_up_step(self, rows: int) -> None:
            warmed.append(rows)
            clock.advance(rows / 32)

    warmed: list[int] = []
    model = ListingSizes(5, 5)
    assert Stepper(model).warm_up(clock) == {1: 1 / 32, 4: 4 / 32, 5: 5 / 32}
    assert warmed == [1] * 4 + [4] * 2 + [5] * 2


def test_the_warm_up_steps_every_size_and_reports_the_fastest_run_of_some() -> None:
    clock = FakeClock()

    class Slow(EchoModel):
        def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
            clock.advance((len(slots) * 2 + len(self.rows) % 2) / 256)
            return super().run(slots)

    model = Slow(capacity=6, largest=5)
    stepper = Stepper(model)
    assert stepper.warm_up(clock) == {1: 2 / 256, 2: 4 / 256, 4: 8 / 256, 5: 10 / 256}
    assert model.rows == [rows for rows in range(1, 6) for _ in range(1 if rows == 3 else 1 + WARM_RUNS)]
    assert stepper.run([stepper.pool.take()], inputs(3)).tolist() == [[3, 1]], (
        "the warm-up changed the state of a new stream"
    )
