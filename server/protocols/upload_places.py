"""Upload places of one replica: their number is bounded, because each body is held in memory.

While all places are taken, a new upload may end one body that is still being received: the slowest one that is below
`SLOW_BYTES_PER_S`, or whose caller holds more places than the new upload's caller would. A body below the minimum rate
is ended in any case. Times are arguments; `server.protocols.uploads` has the event loop's timers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from server.errors import TooManyUploads

GRACE_S = 10.0
"""Time before the minimum rate is enforced: a client may open its file only after it has connected."""
GIVES_WAY_S = 2.0
"""Time before a slow body may be ended for another upload: a connection starts slowly."""
SLOW_BYTES_PER_S = 16 * 1024
"""Rate below which a body may be ended for another upload while all places are taken: 16-bit audio at 8 kHz in real
time.
"""

Stage = Literal["receiving", "waiting", "recognizing"]
"""The body is being received; it has arrived and waits for capacity next to live streams; it is being recognized."""


@dataclass(eq=False, slots=True)
class Place:
    """The place of one upload. `end_early` is called if its body is ended for another upload while being received."""

    owner: str
    began_s: float
    received_bytes: int = 0
    stage: Stage = "receiving"
    gave_way: bool = False
    end_early: Callable[[], None] = field(default=lambda: None)

    def rate(self, now: float) -> float:
        """Return the bytes per second so far; infinity in the first `GIVES_WAY_S`, while it is not known."""
        elapsed_s = now - self.began_s
        return self.received_bytes / elapsed_s if elapsed_s >= GIVES_WAY_S else float("inf")

    def too_slow_at(self, least_bytes_per_s: float) -> float:
        """Return the time at which the body falls below the minimum rate if nothing more arrives."""
        return self.began_s + GRACE_S + self.received_bytes / least_bytes_per_s


class UploadPlaces:
    """The places in use, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[Place, None] = {}  # in order of entry

    def count(self, stage: Stage) -> int:
        """Return the number of uploads at this stage."""
        return sum(place.stage == stage for place in self._places)

    def take(self, owner: str, now: float) -> Place:
        """Take a place, ending another body if necessary and permitted. Raises: TooManyUploads."""
        if len(self._places) >= self._limit:
            loser = self._loser(owner, now)
            if loser is None:
                raise TooManyUploads(f"too many uploads in progress (limit {self._limit}); try again later")
            loser.gave_way = True
            self.release(loser)
            loser.end_early()
        place = Place(owner, now)
        self._places[place] = None
        return place

    def release(self, place: Place) -> None:
        """Release a place; a second call does nothing."""
        self._places.pop(place, None)

    def _loser(self, owner: str, now: float) -> Place | None:
        held = Counter(place.owner for place in self._places)

        def yields(place: Place) -> bool:
            return place.rate(now) < SLOW_BYTES_PER_S or held[place.owner] > held[owner] + 1

        bodies = [place for place in self._places if place.stage == "receiving" and yields(place)]
        return min(bodies, key=lambda place: (place.rate(now), -held[place.owner]), default=None)
