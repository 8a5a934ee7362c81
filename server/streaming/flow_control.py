"""Says when one connection is to be left unread because its audio outruns the engine, so that TCP slows its client.

Pure: it is told the backlog.
"""

from __future__ import annotations

HIGH_WATER, LOW_WATER = 1 / 3, 1 / 6  # of the largest backlog: where reading stops, and where it goes on


class Backpressure:
    """Two marks on one backlog."""

    def __init__(self, max_backlog_s: float) -> None:
        self._high_s, self._low_s = max_backlog_s * HIGH_WATER, max_backlog_s * LOW_WATER
        self.holding = False  # while the client is not read

    def rises(self, backlog_s: float) -> bool:
        """Return whether reading is to stop now."""
        if self.holding or backlog_s <= self._high_s:
            return False
        self.holding = True
        return True

    def falls(self, backlog_s: float) -> bool:
        """Return whether reading may go on now."""
        if not self.holding or backlog_s > self._low_s:
            return False
        self.holding = False
        return True

    def release(self) -> bool:
        """Hold nothing any more, whatever the backlog; return whether something was held."""
        held, self.holding = self.holding, False
        return held
