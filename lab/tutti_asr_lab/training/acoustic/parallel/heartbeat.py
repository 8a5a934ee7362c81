"""Failure detection: ends this process when another process of its run has died, hangs or is unreachable.

Other processes cannot distinguish a process that computes from one that hangs, so a thread of each increments a counter
in a store that the first process holds. The counter shows that the process is alive, not that it makes progress.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # a documented name, not in its __all__

BEAT_S = 1.0
SILENT_S = 7.0  # with one beat and the time to end, less than ten seconds
ANSWERED_S = SILENT_S + BEAT_S  # by then the store has answered or failed
EXIT_SILENT = 75  # EX_TEMPFAIL of sysexits.h: the same command resumes from the last snapshot


class Heartbeat:
    """Two threads: one increments this process's counter and reads the others, one ends the process when they stop.

    There are two because a store on a broken link does not answer. The main thread may wait inside a library, where an
    exception cannot reach it, so the process exits at once; this cannot damage snapshots, which are written atomically.
    """

    def __init__(self, rank: int, size: int, host: str, port: int = 0) -> None:
        """Connect to the store. Rank 0 holds it, at a free port (then in `port`); the others need host and port."""
        self.rank, self.size = rank, size
        limit = timedelta(seconds=SILENT_S)
        self._store = TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, timeout=limit)
        self.port = self._store.port
        self._last = [time.monotonic()] * size  # time of each process's last beat
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]

    def start(self) -> None:
        """Start both threads."""
        self._last = [time.monotonic()] * self.size
        for thread in self._threads:
            thread.start()

    def stop(self, wait_s: float = BEAT_S) -> None:
        """Stop both threads, waiting `wait_s` for each. The other processes must stop at the same time.

        A thread that is inside the store when the interpreter exits aborts the process. At the end of a successful run
        wait `ANSWERED_S`, by which the store answers even on a busy machine.
        """
        self._stopped.set()
        for thread in self._threads:
            thread.join(wait_s)

    def _beat(self) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        counts: dict[int, int] = {}
        while not self._stopped.is_set():
            try:
                self._store.add(str(self.rank), 1)
                for other in others:
                    found = self._store.add(str(other), 0)
                    if counts.get(other) != found:
                        counts[other] = found
                        self._last[other] = time.monotonic()
            except RuntimeError:  # the store is gone, so no other process can be seen any more
                return
            self._last[self.rank] = time.monotonic()
            self._stopped.wait(BEAT_S)

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._stopped.wait(BEAT_S / 2):
            now = time.monotonic()
            if now - looked > 3 * BEAT_S:  # this process or the machine was suspended and missed the beats meanwhile
                self._last = [now] * self.size
            looked = now
            silent = [rank for rank, last in enumerate(self._last) if now - last > SILENT_S]
            if silent:
                names = ", ".join(f"process {rank}" for rank in silent if rank != self.rank) or "the first process"
                sys.stderr.write(f"process {self.rank}: no heartbeat of {names} for {SILENT_S:.0f} s, exiting\n")
                sys.stderr.flush()
                os._exit(EXIT_SILENT)
