"""How long ago each child of the supervisor last reported: one that is silent for too long hangs. Pure."""

from __future__ import annotations

from collections.abc import Callable

PAUSE_S = 2.0
"""Time between two looks from which the supervisor itself was stopped, so that no report could arrive."""
FRESH_S = 2.0
"""Age of a report up to which a child surely works; children report every quarter or half second."""


class Reports:
    """Times of the last reports, by number of the child; one that has not reported yet is not silent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reported_s: dict[int, float] = {}
        self._looked_s = clock()

    def take(self, number: int) -> None:
        """Record that a child has reported now."""
        self._reported_s[number] = self._clock()

    def forget(self, number: int) -> None:
        """Forget a child that has ended or is being killed."""
        self._reported_s.pop(number, None)

    def look(self) -> None:
        """Add the time in which the supervisor was stopped to all reports. Call it about every half second."""
        now = self._clock()
        if (paused_s := now - self._looked_s) > PAUSE_S:
            self._reported_s = {number: time_s + paused_s for number, time_s in self._reported_s.items()}
        self._looked_s = now

    def silent_s(self, number: int) -> float:
        """Return the seconds since a child's last report, 0 before its first."""
        now = self._clock()
        return now - self._reported_s.get(number, now)

    def is_fresh(self, number: int) -> bool:
        """Whether a child has reported recently, or not at all yet."""
        return self.silent_s(number) <= FRESH_S
