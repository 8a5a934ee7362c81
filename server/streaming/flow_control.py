"""Flow control of one connection: when to stop reading, and which of its time limits is over. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from server.streaming.closing import ConnectionEvent

HIGH_WATER, LOW_WATER = 1 / 3, 1 / 6  # of the largest backlog: where reading stops, and where it goes on


class Backpressure:
    """Stops reading above a high-water mark of the backlog, and goes on below a low one.

    The backlog is measured in seconds of audio and as `fill`, the waiting bytes as a share of their limit: a header, or
    audio of many channels, is large without being long. Whatever lowers one of the two must ask `falls`.
    """

    def __init__(self, max_backlog_s: float) -> None:
        self.high_s, self._low_s = max_backlog_s * HIGH_WATER, max_backlog_s * LOW_WATER
        self.holding = False  # while the client is not read
        self._until_release = False

    def rises(self, backlog_s: float, fill: float) -> bool:
        """Return whether reading is to stop now."""
        if self.holding or (backlog_s <= self.high_s and fill <= HIGH_WATER):
            return False
        self.holding = True
        return True

    def hold(self) -> bool:
        """Stop reading until `release`, whatever the backlog; return whether reading went on before."""
        before, self.holding = self.holding, True
        self._until_release = True
        return not before

    def falls(self, backlog_s: float, fill: float) -> bool:
        """Return whether reading may go on now."""
        if not self.holding or self._until_release or backlog_s > self._low_s or fill > LOW_WATER:
            return False
        self.holding = False
        return True

    def release(self) -> bool:
        """Read on, however large the backlog; return whether reading had stopped."""
        held, self.holding = self.holding, False
        self._until_release = False
        return held


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """Limits that the operator sets for live connections, in seconds."""

    idle_timeout_s: float
    stall_timeout_s: float
    write_timeout_s: float
    max_backlog_s: float
    max_session_s: float = math.inf


class Deadlines:
    """The last signs of life of one connection, by its owner's clock."""

    def __init__(self, limits: LiveLimits, now: float) -> None:
        self._limits = limits
        self._opened_s = now
        self.heard_s = now  # the client's last message
        self.progress_s = now  # the engine's last answer, or the moment from which one was due

    def due(self, now: float, writing_since_s: float, *, answer_due: bool, listening: bool) -> ConnectionEvent | None:
        """Return the limit that is over, the gravest first; None while none is.

        `answer_due` is true while audio waits for the engine, `listening` false while the client is not read.
        """
        if now - writing_since_s >= self._limits.write_timeout_s:
            return ConnectionEvent.SLOW_CONSUMER
        if answer_due and self._stall_left_s(now) <= 0:
            return ConnectionEvent.STALLED
        if listening and self._idle_left_s(now) <= 0:
            return ConnectionEvent.IDLE
        return ConnectionEvent.TOO_LONG if self._session_left_s(now) <= 0 else None

    def wait_s(self, now: float) -> float:
        """Return how long no further limit can be over: when to look again."""
        left_s = (self._idle_left_s(now), self._stall_left_s(now), self._session_left_s(now))
        return min([self._limits.write_timeout_s, *(seconds for seconds in left_s if seconds > 0)])

    def _idle_left_s(self, now: float) -> float:
        return self.heard_s + self._limits.idle_timeout_s - now

    def _stall_left_s(self, now: float) -> float:
        return self.progress_s + self._limits.stall_timeout_s - now

    def _session_left_s(self, now: float) -> float:
        return self._opened_s + self._limits.max_session_s - now
