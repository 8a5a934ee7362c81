"""Freed large blocks are returned to the system, on any thread."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, re, sys, threading
from pathlib import Path
from server.operations.process import return_large_blocks
if sys.argv[1] == "set":
    return_large_blocks()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

def use(*sizes):
    blocks = [libc.malloc(size) for size in sizes]
    for block, size in zip(blocks, sizes):
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(block)

def work():
    use(30 << 20)  # raises the threshold, unless it is fixed
    libc.malloc(64)
    use(16 << 20)
    kept.append(resident_mib() - before)

kept, before = [], resident_mib()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(kept[0])
"""


def kept_mib(how: str) -> float:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=60)
    return float(ran.stdout)


def test_a_large_block_that_a_thread_freed_is_not_kept() -> None:
    assert kept_mib("set") < 4.0
