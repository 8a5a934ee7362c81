"""When Python looks for garbage in cycles: while nobody is listening, if it can be helped.

Looking through everything stops all streams at once, for 20 to 160 ms at 300 streams (loadtest/LOG.md), and CPython
does so by itself every few seconds where streams come and go. Streams, refusals and uploads leave no cycles behind
(tests/server/operations/test_gc_schedule.py), so there is next to nothing to find, and it can wait.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

YOUNG, MIDDLE, NEVER = 10_000, 50, 1_000_000
"""Thresholds of the three generations: the young are few and soon looked through, the old are `GcSchedule`'s."""

SETTLED_S = 5.0
"""How long nobody may have been listening before a collection."""

AT_LATEST_S = 900.0
"""A server that is never idle is stopped once in this time: whatever a library leaves must not grow for ever."""


def freeze_loaded_objects() -> None:
    """Leave out of every collection what was loaded, which lives as long as the process; look at the young alone."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


class GcSchedule:
    """Decides about collections of everything. Pure but for `collect`."""

    def __init__(self, now: float, collect: Callable[[], object] = gc.collect) -> None:
        """Take what collects."""
        self._collect = collect
        self._collected_s = now
        self._busy_s: float | None = None  # when streams were last seen since then

    def look(self, now: float, streams: int) -> None:
        """Collect if it is time to."""
        if streams:
            self._busy_s = now
        settled = not streams and self._busy_s is not None and now - self._busy_s >= SETTLED_S
        if settled or now - self._collected_s >= AT_LATEST_S:
            self._collect()
            self._collected_s, self._busy_s = now, None
