"""Which engine host serves which front end: places of hosts, shared out evenly among the front ends."""

from __future__ import annotations


class EnginePlaces:
    """The place of each front end, by its number. Used on the supervisor's event loop alone.

    Connections are shared out evenly among front ends, so the streams of a place are in proportion to its front ends.
    """

    def __init__(self, count: int) -> None:
        """`count`: number of places, at least 1."""
        self._count = count
        self._places: dict[int, int] = {}

    def assign(self, front_end: int) -> int:
        """Give a front end the place with the fewest, the first one of several; return it."""
        used = list(self._places.values())
        place = min(range(self._count), key=used.count)
        self._places[front_end] = place
        return place

    def of(self, front_end: int) -> int:
        """Return the place of a front end, the first one for one that has ended."""
        return self._places.get(front_end, 0)

    def forget(self, front_end: int) -> None:
        """Free the place of a front end that has ended."""
        self._places.pop(front_end, None)
