"""Memory of the states of streams."""

from pathlib import Path

import numpy as np
import pytest

from model.machine.memory import CompiledStates, mapped


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256


def test_of_a_thousand_slots_those_of_a_hundred_streams_take_memory():
    fresh = np.arange(160_000) < 2_000  # the rest of a new stream's state is zero
    before = resident_mib()
    states = CompiledStates(fresh.astype(np.uint8), capacity=1_000)
    assert resident_mib() - before < 16
    for slot in range(100):
        states.reset(slot)
    assert 15 < resident_mib() - before < 40


def test_each_slot_is_a_new_stream_at_first_and_after_a_reset():
    fresh = np.arange(100, dtype=np.uint8)  # its last bytes are not zero
    states = CompiledStates(fresh, capacity=3)
    states.restore(1, bytes(100))
    assert [states.export(slot) == fresh.tobytes() for slot in range(3)] == [True, False, True]
    states.reset(1)
    assert states.export(1) == fresh.tobytes()
    with pytest.raises(MemoryError, match="bytes"):
        mapped(1 << 62)
