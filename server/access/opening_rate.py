"""Rate of openings of each key and of each address: one caller's storm leaves time for the streams of others.

A token bucket each, of `BURST_S` seconds of the rate, so that a caller may fill a replica at once, as a balancer with
one address does when another replica has gone. Source: RFC 2697, "A Single Rate Three Color Marker". Pure: times are
arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from server.errors import TooManyOpenings

BURST_S = 5.0
LEAST_PER_S = 50.0
"""Least rate that `auto` allows: a burst of 250, and ten times what two clients in a hurry open."""
MAX_BUCKETS = 8_192  # those used last: an older one is full again, for `BURST_S` is short


def automatic(limit: Callable[[], float]) -> Callable[[], float]:
    """Return the rate of `auto`: all streams of the replica anew every `BURST_S`, which no balancer comes near."""
    return lambda: max(LEAST_PER_S, limit() / BURST_S)


class OpeningRate:
    """Openings of each owner, a key or an address, at most `per_s` a second after a burst; None is no limit."""

    def __init__(self, per_s: Callable[[], float] | None) -> None:
        self._per_s = per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # owner -> tokens, as of this time

    def __len__(self) -> int:
        """Owners that are remembered."""
        return len(self._buckets)

    def refuse_if_exceeded(self, owner: str, now: float) -> None:
        """Refuse an opening that `take` would refuse, but count none. Raises: TooManyOpenings."""
        if self._per_s is not None:
            self._checked(owner, self._per_s(), now)

    def take(self, owner: str, now: float) -> None:
        """Count an opening. Raises: TooManyOpenings, and none is counted then."""
        if self._per_s is None:
            return
        self._buckets[owner] = self._checked(owner, self._per_s(), now) - 1, now
        self._buckets.move_to_end(owner)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def _checked(self, owner: str, per_s: float, now: float) -> float:
        tokens = self._tokens(owner, per_s, now)
        if tokens < 1:
            raise TooManyOpenings(f"at most {per_s:g} openings a second of one key or address; come back later")
        return tokens

    def _tokens(self, owner: str, per_s: float, now: float) -> float:
        most = max(1.0, BURST_S * per_s)
        tokens, since_s = self._buckets.get(owner, (most, now))
        return min(most, tokens + per_s * (now - since_s))
