"""Schedule of full garbage collections: while no stream is open, if possible.

A full collection stops all streams, for 20 to 160 ms at 300 streams (loadtest/LOG.md), and CPython by itself runs one
every few seconds where streams come and go. Streams, refusals and uploads leave no cycles behind
(tests/server/operations/test_gc_schedule.py), so there is next to nothing to collect, and it can wait.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

YOUNG, MIDDLE, NEVER = 10_000, 50, 1_000_000  # thresholds by generation: collections of the oldest are `GcSchedule`'s
SETTLED_S = 5.0  # without a stream, before a collection
AT_LATEST_S = 900.0  # between collections of a server that is never idle: cycles of libraries must not grow without end


def freeze_loaded_objects() -> None:
    """Run gc.freeze() on all that is loaded; afterwards CPython collects generations 0 and 1 only."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


def freeze_what_came() -> None:
    """Freeze what was loaded while streams run, without a collection before it, which would stop them."""
    gc.freeze()


class GcSchedule:
    """Decides when to run a full collection. Pure but for `collect`."""

    def __init__(self, now: float, collect: Callable[[], object] = gc.collect) -> None:
        """`collect` runs a full collection."""
        self._collect = collect
        self._collected_s = now
        self._busy_s: float | None = None  # last time with a stream open, since the last collection
        self._thaw = False

    def thaw(self, now: float) -> None:
        """With the next collection, which is soon if no stream is open, look at what was frozen, too.

        A model that was unloaded is among it; its arrays hang on cycles.
        """
        self._thaw, self._busy_s = True, now

    def look(self, now: float, streams: int) -> None:
        """Collect if it is time to; `streams` is the number open now."""
        if streams:
            self._busy_s = now
        settled = not streams and self._busy_s is not None and now - self._busy_s >= SETTLED_S
        if settled or now - self._collected_s >= AT_LATEST_S:
            if self._thaw:
                gc.unfreeze()
            self._collect()
            if self._thaw:
                gc.freeze()
                self._thaw = False
            self._collected_s, self._busy_s = now, None
