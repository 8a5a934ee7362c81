"""How long a thread has computed, or waited for a core to compute on: what its work takes of the time there is."""

from __future__ import annotations

import contextlib
import os
import threading
import time


class ThreadTime:
    """A clock of the thread that first reads it, in seconds. Where the system does not tell of waiting, of computing.

    Source: https://docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/schedstat.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._tried = False

    def __call__(self) -> float:
        """Seconds so far."""
        if not self._tried:
            self._tried = True
            with contextlib.suppress(OSError):
                self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        if self._file is None:
            return time.thread_time()
        computed, waited, _ = os.pread(self._file, 64, 0).split()
        return (int(computed) + int(waited)) / 1e9

    def __del__(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
