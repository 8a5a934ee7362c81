"""Places of uploads: their number and the memory of their bodies are bounded, and shared fairly among callers. Pure.

While all places are taken, a new upload may end another one: the slowest body that is below `SLOW_BYTES_PER_S` while it
is received, or else one of the caller with the most places, if that is more than the new upload's caller would hold.
While the memory is used up, a body of the caller with the most bytes is ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
    """The place of one upload. `end_early` is called if it is ended for another upload."""

    owner: str
    began_s: float
    received_bytes: int = 0
    stage: Stage = "receiving"
    gave_way: bool = False
    end_early: Callable[[], None] | None = None

    def rate(self, now: float) -> float:
        """Return the bytes per second so far; infinity in the first `GIVES_WAY_S`, while it is not known."""
        elapsed_s = now - self.began_s
        return self.received_bytes / elapsed_s if elapsed_s >= GIVES_WAY_S else float("inf")

    def too_slow_at(self, least_bytes_per_s: float) -> float:
        """Return the time at which the body falls below the minimum rate if nothing more arrives."""
        return self.began_s + GRACE_S + self.received_bytes / least_bytes_per_s


class UploadPlaces:
    """The places in use, at most `limit`, with bodies of `max_bytes` together."""

    def __init__(self, limit: int, max_bytes: float = math.inf) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._places: dict[Place, None] = {}  # in order of entry

    def count(self, stage: Stage) -> int:
        """Return the number of uploads at this stage."""
        return sum(upload.stage == stage for upload in self._places)

    def take(self, owner: str, now: float) -> Place:
        """Take a place, ending another upload if necessary and permitted. Raises: TooManyUploads."""
        if len(self._places) >= self._limit:
            loser = self._slowest(now) or self._newest_of_greediest(owner)
            if loser is None:
                raise TooManyUploads(f"too many uploads in progress (limit {self._limit}); try again later")
            self._end(loser)
        upload = Place(owner, now)
        self._places[upload] = None
        return upload

    def receive(self, upload: Place, size_bytes: int) -> None:
        """Note the size of a body so far, ending another body if all exceed the memory. Raises: TooManyUploads."""
        upload.received_bytes = size_bytes
        while upload in self._places and self._bytes > self._max_bytes:
            loser = self._largest_receiving()
            self._end(loser)
            if loser is upload:
                raise TooManyUploads("the uploads in progress take all memory for bodies; try again later")

    def release(self, upload: Place) -> None:
        """Release a place; a second call does nothing."""
        self._places.pop(upload, None)

    @property
    def _bytes(self) -> int:
        return sum(upload.received_bytes for upload in self._places)

    def _end(self, loser: Place) -> None:
        loser.gave_way = True
        self.release(loser)
        if loser.end_early is not None:
            loser.end_early()

    def _slowest(self, now: float) -> Place | None:
        slow = [upload for upload in self._receiving if upload.rate(now) < SLOW_BYTES_PER_S]
        return min(slow, key=lambda upload: upload.rate(now), default=None)

    def _newest_of_greediest(self, owner: str) -> Place | None:
        """Return the upload of the caller with the most places that has least to lose; None if it is no more than fair.

        Bodies that are still being received before complete ones, then the newest.
        """
        held = Counter(upload.owner for upload in self._places)
        greedy = [upload for upload in self._places if held[upload.owner] > held[owner] + 1]
        return max(reversed(greedy), key=lambda upload: (held[upload.owner], upload.stage == "receiving"), default=None)

    def _largest_receiving(self) -> Place:
        """Return the newest body being received of the caller with the most bytes; there is one that grows."""
        sizes: Counter[str] = Counter()
        for upload in self._places:
            sizes[upload.owner] += upload.received_bytes
        return max(reversed(self._receiving), key=lambda upload: sizes[upload.owner])

    @property
    def _receiving(self) -> list[Place]:
        return [upload for upload in self._places if upload.stage == "receiving"]
