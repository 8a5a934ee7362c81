"""Schedule of full garbage collections, if possible while no stream is open.

A full collection stops all streams, for 20 to 160 ms at 300 streams (loadtest/LOG.md), and by default CPython runs one
every few seconds as streams open and close. Streams, refusals and uploads create no reference cycles
(tests/server/operations/test_gc_schedule.py), so there is almost nothing to collect, and it can wait.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

YOUNG, MIDDLE, NEVER = 10_000, 50, 1_000_000  # thresholds by generation; `GcSchedule` collects the oldest
SETTLED_S = 5.0  # without an open stream before a collection
AT_LATEST_S = 900.0  # between collections on a server that is never idle: bounds the cycles created by libraries


def freeze_loaded_objects() -> None:
    """Run gc.freeze() on all loaded objects; from then on CPython collects only generations 0 and 1."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


def freeze_what_came() -> None:
    """Freeze objects loaded while streams run, without a collection first, which would stop the streams."""
    gc.freeze()


class GcSchedule:
    """Decides when to run a full collection. Pure except for `collect`."""

    def __init__(self, now: float, collect: Callable[[], object] = gc.collect) -> None:
        """`collect` runs a full collection."""
        self._collect = collect
        self._collected_s = now
        self._busy_s: float | None = None  # last time with a stream open, since the last collection
        self._thaw = False

    def thaw(self, now: float) -> None:
        """Include frozen objects in the next collection, which is soon if no stream is open.

        They include an unloaded model, whose arrays are reachable from reference cycles.
        """
        self._thaw, self._busy_s = True, now

    def look(self, now: float, streams: int) -> None:
        """Collect if it is due; `streams` is the number open now."""
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
