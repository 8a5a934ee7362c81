"""Rate limit per key and per address, of stream openings and new key terms, so that no caller slows down the others.

Each owner has a token bucket of `BURST_S` seconds of the rate, so that one address can fill a replica at once, as a
load balancer does after the loss of another replica. Source: RFC 2697, "A Single Rate Three Color Marker". Pure: time
is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from server.errors import TooManyOpenings

BURST_S = 5.0
LEAST_PER_S = 50.0
"""Lowest rate of `auto`: a burst of 250, and ten times what two busy clients open."""
MAX_BUCKETS = 8_192  # the least recently used buckets are dropped: they are full again after `BURST_S`


def automatic(limit: Callable[[], float]) -> Callable[[], float]:
    """Return the rate of `auto`: enough to reopen all streams of the replica every `BURST_S`."""
    return lambda: max(LEAST_PER_S, limit() / BURST_S)


class OpeningRate:
    """Rate limit per owner, a key or an address: `per_s` of `counted` a second after a burst; None: no limit."""

    def __init__(self, per_s: Callable[[], float] | None, counted: str = "openings") -> None:
        self._per_s = per_s
        self._counted = counted
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # owner -> tokens, as of this time

    def refuse_if_exceeded(self, owner: str, now: float) -> None:
        """Check as `take` does, without counting an opening. Raises: TooManyOpenings."""
        if self._per_s is not None:
            self._checked(owner, self._per_s(), now)

    def take(self, owner: str, now: float, count: int = 1) -> None:
        """Count an opening; a larger `count` is lent. Raises: TooManyOpenings, without counting it."""
        if self._per_s is None:
            return
        self._buckets[owner] = self._checked(owner, self._per_s(), now) - count, now
        self._buckets.move_to_end(owner)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def _checked(self, owner: str, per_s: float, now: float) -> float:
        tokens = self._tokens(owner, per_s, now)
        if tokens < 1:
            raise TooManyOpenings(
                f"more than {per_s:g} {self._counted} per second from one key or address; retry later", owner
            )
        return tokens

    def _tokens(self, owner: str, per_s: float, now: float) -> float:
        most = max(1.0, BURST_S * per_s)
        tokens, since_s = self._buckets.get(owner, (most, now))
        return min(most, tokens + per_s * (now - since_s))
