"""Token that engines on the same cores share, so that their batches run one after the other.

Two batches at once take cores from the event loop, and their threads compete for the interpreter lock. Run one after
the other they are also larger, because steps that arrive meanwhile join the next batch. Best effort, not mutual
exclusion: after `patience_s` a waiting engine proceeds anyway, so a slow or hung model cannot block the others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.01  # time of a batch of a small network on a busy machine; waiting longer for a large network costs more


class StepToken:
    """A token shared by a group of engines; any thread may hold it. A machine may have several groups."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._free = threading.Lock()  # a waiting thread acquires it before it has the interpreter lock again

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait until no other thread holds the token, at most `patience_s`."""
        mine = self._free.acquire(timeout=self._patience_s)
        try:
            yield
        finally:
            if mine:
                self._free.release()
