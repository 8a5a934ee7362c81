"""Process setup: closed stdio, RLIMIT_NOFILE, free memory, memory of large blocks, exit after a timeout, SIGHUP."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

EXIT_LOST = 70  # exit status if the engine is lost; the supervisor starts a new process. Source: sysexits.h
M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES = -3, 4 * 2**20  # Source: mallopt(3)
OTHER_FILES = 512  # descriptors for refused requests, probes, uploads, libraries


def reopen_closed_stdio() -> None:
    """Open descriptors 0 to 2 if closed; otherwise a socket could get the number and receive printed text."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            taken = os.open(os.devnull, os.O_RDWR)
            if taken != fd:
                os.dup2(taken, fd)
                os.close(taken)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the life of the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def free_memory() -> int:
    """Return free memory in bytes: the least of the machine's and the control group's."""
    rows = dict(row.split(":", 1) for row in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    free = int(rows["MemAvailable"].split()[0]) * 1024
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return free
    return min(free, limit - used)


def files_needed(streams: int) -> int:
    """Return the descriptors needed for this number of live streams and everything else in the process."""
    return streams + OTHER_FILES


def raise_file_limit() -> float:
    """Raise the limit of open files as far as allowed, because clients open connections without asking; return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS refuses an infinite one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def return_large_blocks() -> None:
    """Make glibc return freed blocks of 4 MiB and more to the system; no effect with another allocator.

    By default it raises the threshold up to 32 MiB and keeps such a block for each thread that once allocated one:
    FFmpeg allocates 16 MiB for a cover picture if its header announces that size.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def end_within(seconds: float, code: int, before_exit: Callable[[], None]) -> threading.Timer:
    """Exit with this status after at most `seconds`: a thread inside a device call can block a normal exit."""

    def end() -> None:
        before_exit()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def on_sighup(action: Callable[[], None]) -> None:
    """Call `action` on the running loop at each SIGHUP. No effect outside the main thread, which gets the signals."""
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)
