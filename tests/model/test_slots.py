"""Slots of torch models: padding, tiles, states of any shape as bytes, faults, and both step functions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from model.errors import DeviceLost
from model.torch_network.slabs import RowSpec
from model.torch_network.slots import TorchSlots
from tests.support.networks.slot_models import EchoStep

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int16, torch.int64, torch.bool,
          torch.uint8, torch.complex64)  # fmt: skip


def run(slots: TorchSlots, steps: Mapping[int, int]) -> list[list[int]]:
    """Run one step of each slot with inputs filled with a value."""
    slots.inputs[: len(steps)] = np.array(list(steps.values()))[:, None]
    answers: list[list[int]] = slots.run(list(steps)).tolist()
    return answers


def test_small_batches_are_padded_to_min_rows_with_zeros() -> None:
    model = EchoStep(min_rows=3)
    slots = TorchSlots(model, capacity=2, largest=2)
    assert slots.inputs.shape == (2, 4)
    assert run(slots, {1: 8}) == [[8, 1]]
    assert run(slots, {0: 9, 1: 8}) == [[9, 1], [8, 2]]
    assert run(slots, {0: 9}) == [[9, 2]]
    assert model.seen == [[8, 0, 0], [9, 8, 0], [9, 0, 0]]  # not the inputs of an earlier batch


@pytest.mark.parametrize(("tile_rows", "calls"), [(None, [3, 5, 3]), (4, [4, 4, 4, 4])])
def test_rows_are_written_to_their_own_slots_in_batches_and_tiles(tile_rows: int | None, calls: list[int]) -> None:
    model = EchoStep(min_rows=3)
    slots = TorchSlots(model, capacity=6, largest=5, tile_rows=tile_rows)
    assert run(slots, {4: 50}) == [[50, 1]]
    assert run(slots, {0: 10, 5: 20, 2: 30, 3: 40, 4: 99}) == [[10, 1], [20, 1], [30, 1], [40, 1], [50, 2]]
    assert run(slots, {3: 0, 0: 0}) == [[40, 2], [10, 2]]
    assert [len(call) for call in model.seen] == calls
    assert slots.export(1) == bytes(slots.state_bytes), "a slot outside of the batch was written"


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least 4 for this model"):
        TorchSlots(EchoStep(min_rows=4), capacity=4, largest=4, tile_rows=2)
    with pytest.raises(ValueError, match="at least 1"):
        TorchSlots(EchoStep(), capacity=0, largest=4)
    with pytest.raises(ValueError, match="at least 1"):
        TorchSlots(EchoStep(), capacity=4, largest=0)
    assert len(TorchSlots(EchoStep(), capacity=3, largest=8).inputs) == 3


class Passing(EchoStep):
    """Model that returns its inputs, and a given state."""

    def __init__(self, spec: Mapping[str, RowSpec], after: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.state_spec, self.after = spec, after

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the inputs, and the rows of `after`."""
        self.before = state
        return inputs, dict(self.after or state)


def test_padding_reads_an_initial_state_and_writes_none() -> None:
    model = Passing({"a": RowSpec((2,), torch.float32)}, {"a": torch.ones(3, 2)})
    model.min_rows = 3
    slots = TorchSlots(model, capacity=2, largest=2)
    for expected in (0, 1):
        slots.run([0])
        assert model.before["a"].tolist() == [[expected] * 2, [0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)], ids=str)
def test_states_of_any_dtype_and_shape_are_stored_and_moved_exactly(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    spec = {"a": RowSpec((2,), torch.int16), "b": RowSpec(shape, dtype), "none": RowSpec((0,), torch.int32)}
    states = {name: (torch.rand(3, *row.shape) * 100 + 1).to(row.dtype) for name, row in spec.items()}
    here, there = Passing(spec, states), Passing(spec)
    source, target = TorchSlots(here, capacity=3, largest=3), TorchSlots(there, capacity=2, largest=2)
    source.run([2, 0, 1])
    assert not any(value.any() for value in here.before.values())
    assert len(source.export(0)) == source.state_bytes == target.state_bytes
    target.restore(1, source.export(0))
    target.run([0, 1])
    for name, before in there.before.items():
        assert not before[0].any()
        assert torch.equal(before[1], states[name][1])
    target.reset(1)
    assert target.export(1) == bytes(target.state_bytes)


def test_states_of_other_names_shapes_or_dtypes_and_wrong_numbers_of_output_rows_are_rejected() -> None:
    spec = {"a": RowSpec((3,), torch.float32)}
    for after in ({"b": torch.zeros(1, 3)}, {"a": torch.zeros(1, 5)}, {"a": torch.zeros(1, 3, dtype=torch.float64)}):
        with pytest.raises((KeyError, RuntimeError, IndexError)):
            TorchSlots(Passing(spec, after), capacity=1, largest=1).run([0])

    class Short(EchoStep):
        def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            outputs, after = super().step(inputs, state)
            return outputs[1:], after

    with pytest.raises(ValueError, match="for 4 rows of input"):
        TorchSlots(Short(min_rows=4), capacity=4, largest=4).run([0])


@pytest.mark.parametrize("lost", [True, False])
def test_after_a_failed_step_on_a_gpu_a_lost_device_is_detected(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize(device: torch.device) -> None:
        if lost:
            raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    slots = TorchSlots(EchoStep(), capacity=1, largest=1)
    slots._device = torch.device("cuda")  # without a GPU the first copy fails from here on
    with pytest.raises(DeviceLost if lost else (RuntimeError, AssertionError, ArithmeticError)) as error:
        run(slots, {0: -1})
    assert isinstance(error.value, Exception) != lost
