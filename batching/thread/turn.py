"""A turn that engines on the same cores take, so that their batches do not run at once.

Two batches at once on cores that an event loop needs too make it wait, and each other for the interpreter's lock;
one after the other they are also larger, for what comes meanwhile joins the next one. It is a courtesy and not a lock:
who has waited for `patience_s` goes ahead, so a model that is slow, or hangs, holds nobody up for longer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.01  # a batch of a small network on a busy machine; a larger network's is not worth waiting for


class Turn:
    """Shared by engines; any thread may take it. The engines of one machine may share several, a group each."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._free = threading.Lock()  # of which a waiting thread becomes the owner before it has the interpreter's

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait until no other thread is inside, at most `patience_s`."""
        mine = self._free.acquire(timeout=self._patience_s)
        try:
            yield
        finally:
            if mine:
                self._free.release()
