"""Flow control of one connection: when to stop reading, and when the connection is over. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

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


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """What the operator sets for live connections, in seconds."""

    idle_timeout_s: float
    stall_timeout_s: float
    write_timeout_s: float
    max_backlog_s: float
    max_session_s: float = math.inf


class Due(Enum):
    """What the time demands."""

    NOTHING = "nothing"
    CUT = "cut"  # the client does not take what is written
    STALLED = "stalled"  # audio waits, and the engine answers nothing
    IDLE = "idle"  # neither audio nor text came in
    TOO_LONG = "too_long"  # open for as long as a connection may be


class Deadlines:
    """The last signs of life of one connection, by the clock of whoever owns it."""

    def __init__(self, limits: LiveLimits, now: float) -> None:
        self._limits = limits
        self._opened_s = now
        self.heard_s = now  # the client, last
        self.progress_s = now  # the engine, last; or the moment from which an answer was due

    def due(self, now: float, writing_since_s: float, *, owed: bool, listening: bool) -> Due:
        """Say what is due; `owed` is true while audio waits for an answer, `listening` false while we do not read."""
        if now - writing_since_s >= self._limits.write_timeout_s:
            return Due.CUT
        if owed and self._stall_left_s(now) <= 0:
            return Due.STALLED
        if listening and self._idle_left_s(now) <= 0:
            return Due.IDLE
        return Due.TOO_LONG if self._session_left_s(now) <= 0 else Due.NOTHING

    def wait_s(self, now: float) -> float:
        """How long nothing can become due, unless something happens: when to look again."""
        left_s = (self._idle_left_s(now), self._stall_left_s(now), self._session_left_s(now))
        return min(self._limits.write_timeout_s, *(seconds for seconds in left_s if seconds > 0))

    def _idle_left_s(self, now: float) -> float:
        return self.heard_s + self._limits.idle_timeout_s - now

    def _stall_left_s(self, now: float) -> float:
        return self.progress_s + self._limits.stall_timeout_s - now

    def _session_left_s(self, now: float) -> float:
        return self._opened_s + self._limits.max_session_s - now
