"""Places of uploads on one replica: bounded, because each body is held in memory, and given by progress.

While all places are taken, a newcomer may end one body that is still on its way: the slowest, if it is slow, or if its
caller holds more places than the newcomer would. A body that falls below the least rate ends anyway. Times are
arguments; the event loop's timers belong to `server.protocols.uploads`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from server.errors import TooManyUploads

GRACE_S = 10.0
"""Time before a body that falls below the least rate is ended: a client may open its file only now."""
GIVES_WAY_S = 2.0
"""Time before a slow body gives way to another upload: a connection begins slowly."""
SLOW_BYTES_PER_S = 16 * 1024
"""Rate below which a body gives way to another upload once every place is taken: 16-bit audio at 8 kHz in real time."""

Stage = Literal["receiving", "waiting", "recognizing"]
"""The body is on its way; it has arrived, and waits until live streams leave room; its steps are in batches."""


@dataclass(eq=False, slots=True)
class Place:
    """A place of one upload. `end_early` is called if a body that is on its way has to give way."""

    owner: str
    began_s: float
    received_bytes: int = 0
    stage: Stage = "receiving"
    gave_way: bool = False
    end_early: Callable[[], None] = field(default=lambda: None)

    def rate(self, now: float) -> float:
        """Bytes per second so far; within `GIVES_WAY_S` of the beginning infinite, for it is not known."""
        elapsed_s = now - self.began_s
        return self.received_bytes / elapsed_s if elapsed_s >= GIVES_WAY_S else float("inf")

    def too_slow_at(self, least_bytes_per_s: float) -> float:
        """Return when the body is below the least rate, if nothing more comes."""
        return self.began_s + GRACE_S + self.received_bytes / least_bytes_per_s


class UploadPlaces:
    """The places that are taken, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[Place, None] = {}  # in order of entry

    def count(self, stage: Stage) -> int:
        """Number of uploads at this stage."""
        return sum(place.stage == stage for place in self._places)

    def take(self, owner: str, now: float) -> Place:
        """Take a place, if need be that of a body that gives way. Raises: TooManyUploads."""
        if len(self._places) >= self._limit:
            loser = self._loser(owner, now)
            if loser is None:
                raise TooManyUploads(f"{self._limit} uploads are in progress, as many as this server takes at a time")
            loser.gave_way = True
            self.release(loser)
            loser.end_early()
        place = Place(owner, now)
        self._places[place] = None
        return place

    def release(self, place: Place) -> None:
        """Give a place back; a second call does nothing."""
        self._places.pop(place, None)

    def _loser(self, owner: str, now: float) -> Place | None:
        held = Counter(place.owner for place in self._places)

        def yields(place: Place) -> bool:
            return place.rate(now) < SLOW_BYTES_PER_S or held[place.owner] > held[owner] + 1

        bodies = [place for place in self._places if place.stage == "receiving" and yields(place)]
        return min(bodies, key=lambda place: (place.rate(now), -held[place.owner]), default=None)
