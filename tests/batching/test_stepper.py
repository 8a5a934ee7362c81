"""The stepper: a `SlabModel` gives the same answers as a plain `StepModel`, and faults stay in tsuccessor batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from fakes import EchoModel
from needs import need_precision
from torch import Tensor

from batching.errors import StaleHandle, StepFailed
from batching.stepper import Stepper
from model.acoustic import AcousticModel


class SlabEcho(EchoModel):
    """An `EchoModel` that gathers and scatters by itself; it raises for a negative input, once it has written."""

    def in_slabs(self, inputs: Tensor, index: Tensor, slabs: Mapping[str, Tensor]) -> Callable[[int, int, int], Tensor]:
        """As `batching.step_model.SlabModel`."""

        def step(first: int, count: int, kept: int) -> Tensor:
            rows, samples = index[first : first + count], inputs[first : first + count]
            outputs, after = self.step(samples, {name: slab[rows] for name, slab in slabs.items()})
            for name, slab in slabs.items():
                slab[rows[:kept]] = after[name][:kept]
            if (samples < 0).any():
                raise ArithmeticError("negative")
            return outputs

        return step


def inputs(*values: int) -> list[np.ndarray]:
    """One step of each stream, identified by its value."""
    return [np.full(4, value, dtype=np.int16) for value in values]


@pytest.mark.parametrize("kind", [EchoModel, SlabEcho])
@pytest.mark.parametrize(("tile_rows", "sizes"), [(None, [3, 5, 3]), (4, [4, 4, 4, 4])])
def test_rows_go_to_tsuccessor_own_streams_in_batches_and_tiles(
    kind: type[EchoModel], tile_rows: int | None, sizes: list[int]
) -> None:
    model = kind(min_rows=3)
    stepper = Stepper(model, capacity=6, max_batch=5, tile_rows=tile_rows)
    handles = [stepper.pool.take() for _ in range(5)]
    assert stepper.run([handles[4]], inputs(50)).tolist() == [[50, 1]]
    answers = stepper.run(handles, inputs(10, 20, 30, 40, 99))
    assert answers.tolist() == [[10, 1], [20, 1], [30, 1], [40, 1], [50, 2]]
    assert stepper.run([handles[3], handles[0]], inputs(0, 0)).tolist() == [[40, 2], [10, 2]]
    assert answers.tolist() == [[10, 1], [20, 1], [30, 1], [40, 1], [50, 2]], "an answer changed later"
    assert model.rows == sizes
    fresh = stepper.pool.take()
    padded = stepper.pool.gather([fresh], 4)
    assert not any(value.any() for value in padded.values()), "a padding row was written"


def test_inputs_may_be_views_with_gaps() -> None:
    stepper = Stepper(SlabEcho(), capacity=2, max_batch=2, tile_rows=None)
    gaps = np.arange(8, dtype=np.int16)[1::2]
    assert stepper.run([stepper.pool.take()], [gaps]).tolist() == [[1, 1]]


def test_a_failed_step_in_slabs_raises_and_leaves_the_other_streams_states() -> None:
    stepper = Stepper(SlabEcho(), capacity=3, max_batch=3, tile_rows=None)
    bystander, victim = stepper.pool.take(), stepper.pool.take()
    stepper.run([bystander], inputs(7))
    with pytest.raises(StepFailed, match="ArithmeticError"):
        stepper.run([victim], inputs(-1))
    stepper.pool.release(victim)
    with pytest.raises(StaleHandle):
        stepper.run([bystander, victim], inputs(1, 1))
    successor = stepper.pool.take()
    assert stepper.run([successor, bystander], inputs(8, 1)).tolist() == [[8, 1], [7, 2]]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_acoustic_model_gives_the_same_answers_in_slabs_and_by_gather_and_scatter(precision: str) -> None:
    need_precision(precision)
    model = AcousticModel.random(precision=precision)
    noise = np.random.default_rng(0).integers(-8_000, 8_000, (6, 3, model.config.step_samples), dtype=np.int16)

    def answers(apart: bool) -> list[np.ndarray]:
        stepper = Stepper(model, capacity=4, max_batch=4, tile_rows=None)
        assert stepper._in_slabs is not None
        if apart:
            stepper._in_slabs = None
        handles = [stepper.pool.take() for _ in range(3)]
        with torch.inference_mode():
            return [stepper.run(handles[: 1 + i % 3], list(rows)[: 1 + i % 3]) for i, rows in enumerate(noise)]

    for left, right in zip(answers(apart=True), answers(apart=False), strict=True):
        assert np.array_equal(left, right)
