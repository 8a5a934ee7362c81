"""Ends this process when another one of its run has died, hangs or cannot be reached any more.

A process that computes and one that waits look alike to those that wait for it, so a thread of each counts up in a
store that the first process keeps. What is counted is that the process lives, not that it makes progress.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # a documented name, not in its __all__

BEAT_S = 1.0
SILENT_S = 7.0  # with a beat, and the time that it takes to end, less than ten
ANSWERED_S = SILENT_S + BEAT_S  # the store answers, or has refused by then
EXIT_SILENT = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on from the last snapshot


class Heartbeat:
    """Two threads: one counts up and reads the counts of the others, one ends the process when they stand still.

    Two, because a store behind a cut link does not answer. The main thread may wait inside a library, where no
    exception reaches it, so the process ends at once; snapshots are written so that this harms none.
    """

    def __init__(self, rank: int, size: int, host: str, port: int = 0) -> None:
        """Rank 0 keeps the store, at a free port, `port` afterwards; the others are told host and port."""
        self.rank, self.size = rank, size
        limit = timedelta(seconds=SILENT_S)
        self._store = TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, timeout=limit)
        self.port = self._store.port
        self._last = [time.monotonic()] * size  # when each process was last heard of
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]

    def start(self) -> None:
        """Begin to beat, and to listen."""
        self._last = [time.monotonic()] * self.size
        for thread in self._threads:
            thread.start()

    def stop(self, wait_s: float = BEAT_S) -> None:
        """Beat no more; others must have done so, or be about to. Wait so long for each thread.

        A thread inside the store while the interpreter ends would abort the process: at the end of a run that went well
        give it `ANSWERED_S`, in which the store answers even on a machine that is busy.
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
            except RuntimeError:  # the store is gone: every other process is silent from here
                return
            self._last[self.rank] = time.monotonic()
            self._stopped.wait(BEAT_S)

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._stopped.wait(BEAT_S / 2):
            now = time.monotonic()
            if now - looked > 3 * BEAT_S:  # this process, or the machine, stood still: it has heard nobody since
                self._last = [now] * self.size
            looked = now
            silent = [rank for rank, last in enumerate(self._last) if now - last > SILENT_S]
            if silent:
                names = ", ".join(f"process {rank}" for rank in silent if rank != self.rank) or "the first process"
                sys.stderr.write(f"process {self.rank}: {names} silent for {SILENT_S:.0f} s; ending\n")
                sys.stderr.flush()
                os._exit(EXIT_SILENT)
