"""Memory of the states of streams."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from model.machine.memory import CompiledStates, mapped

PROGRAM = """
import re
from pathlib import Path
import numpy as np
from model.machine.memory import CompiledStates

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before = resident_mib()
fresh = np.zeros(160_000, np.uint8)
fresh[:2_000] = 7
states = CompiledStates(fresh, capacity=1_000)
print(resident_mib() - before)
for slot in range(100):
    states.reset(slot)
print(resident_mib() - before)
"""


def test_slots_take_memory_once_a_stream_has_them():
    """Of 153 MiB for a thousand states those of a hundred streams."""
    program = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    at_start, in_use = map(float, output.split())
    assert at_start < 16
    assert in_use < 40


def test_each_slot_is_a_new_stream_at_first():
    """Also a state whose last bytes are not zero."""
    fresh = np.arange(100, dtype=np.uint8)
    states = CompiledStates(fresh, capacity=3)
    assert [states.export(slot) for slot in range(3)] == [fresh.tobytes()] * 3
    states.restore(1, bytes(100))
    assert [states.export(slot)[1] for slot in range(3)] == [1, 0, 1]
    states.reset(1)
    assert states.export(1) == fresh.tobytes()


def test_more_memory_than_there_can_be_is_a_memory_error():
    """Not one of the mapping, which callers do not expect."""
    for size in (1 << 62, 1 << 70):
        with pytest.raises(MemoryError, match=str(size)):
            mapped(size)
