"""Slots with steps recorded per size, on a CPU: sizes, chunks, the zero row, padding, poison and failures.

`tests/batching/test_slots_stateful.py` compares them with each stream alone, as all slot models.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from batching.stepper import Stepper
from model.errors import PrecisionError
from model.gpu import slots as gpu_slots
from model.gpu.slots import RecordedSlots, bucket, choose_rung
from model.torch_network.slabs import RowSpec
from tests.support.networks.recorded_toys import recorded
from tests.support.networks.slot_models import EchoStep, TinyGru

ECHO_OUT, GRU_OUT = RowSpec((2,), torch.int64), RowSpec((16,), torch.float32)


def gru(capacity: int = 6, largest: int = 16) -> RecordedSlots:
    return recorded(TinyGru(), GRU_OUT, capacity, largest)


def audio(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 24)).astype(np.float32)


def poison(slots: RecordedSlots) -> None:
    """Overwrite all memory that a step must not depend on: old contents of buffers and of the trash row."""
    for memory in (slots._host, slots._memory):
        memory.inputs.whole.fill_(0x55)
        memory.outputs["out"].fill_(float("nan"))
    for slab in slots._slabs.tensors.values():
        slab[slots.capacity + 1].fill_(float("nan"))


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (128, 128), (129, 256)])
def test_a_batch_uses_the_recording_of_the_next_power_of_two(rows: int, size: int) -> None:
    assert bucket(rows) == size


def test_a_size_is_recorded_once() -> None:
    slots = gru()
    for count in (1, 3, 4, 3, 1):
        slots.run(range(count))
    assert sorted(slots._replays) == [(1, 1), (4, 1)]


def test_warming_up_records_every_size_and_every_chunk_that_fits() -> None:
    slots = gru(largest=8)
    for rows in slots.warmup_sizes:
        slots.warm_up_step(rows)
    assert sorted(slots._replays) == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)]


def test_a_largest_batch_that_is_no_power_of_two_is_warmed_up_too() -> None:
    slots = gru(largest=6)
    assert slots.warmup_sizes == [1, 2, 4, 6]
    for rows in slots.warmup_sizes:
        slots.warm_up_step(rows)
    assert (8, 1) in slots._replays


def test_nothing_depends_on_old_contents_of_the_buffers() -> None:
    clean, poisoned = gru(), gru()
    rng = np.random.default_rng(0)
    for turn in range(12):
        members = rng.permutation(6)[: 1 + turn % 5].tolist()
        poison(poisoned)
        for slots in (clean, poisoned):
            slots.inputs[: len(members)] = audio(turn, len(members))
        assert np.array_equal(clean.run(members), poisoned.run(members))
    assert [clean.export(slot) for slot in range(6)] == [poisoned.export(slot) for slot in range(6)]


def test_a_reset_zeroes_nothing_and_the_next_step_reads_zeros() -> None:
    slots = gru()
    slots.inputs[:1] = audio(1, 1)
    first = slots.run([2])
    left = slots._slabs.copy_out(2)
    slots.reset(2)
    assert slots._slabs.copy_out(2) == left  # the row still holds the old state
    assert slots.export(2) == bytes(slots.state_bytes)
    slots.inputs[:1] = audio(1, 1)
    assert np.array_equal(slots.run([2]), first)


def test_chunks_are_warmed_up_with_no_more_streams_than_there_are_slots() -> None:
    ticks = itertools.count()
    measured = Stepper(recorded(EchoStep(), ECHO_OUT, 2, 16)).warm_up_chunks(lambda: float(next(ticks)))
    assert {steps: max(by_streams) for steps, by_streams in measured.items()} == {2: 2, 4: 2, 8: 2}


@pytest.mark.parametrize(("capacity", "largest"), [(0, 1), (1, 0)])
def test_sizes_below_one_are_rejected(capacity: int, largest: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        gru(capacity, largest)


@pytest.mark.parametrize(
    ("rung", "error"),
    [
        ("graph", "pip install triton"),
        ("persistent", r"measured by tutti_asr_lab\.gpu"),
        ("fast", "must be one of auto"),
    ],
)
def test_a_rung_that_does_not_run_is_refused_by_name(rung: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_slots, "find_spec", lambda _name: None)
    with pytest.raises(PrecisionError, match=error):
        choose_rung(rung, torch.device("cuda"))


def test_auto_without_triton_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_slots, "find_spec", lambda _name: None)
    assert choose_rung("auto", torch.device("cuda")) == "eager"
