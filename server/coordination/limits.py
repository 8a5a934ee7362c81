"""Limits of callers: rate of openings, open calls of each key, used resume tickets, and the spread of `Retry-After`.

Pure: time is an argument, or a clock is given.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable

from server.errors import TooManyOpenings, TooManyStreams

BURST_S = 5.0
LEAST_PER_S = 50.0
"""Lowest rate of `auto`: a burst of 250, and ten times what two busy clients open."""
MAX_BUCKETS = 8_192  # the least recently used buckets are dropped: they are full again after `BURST_S`
RETRIES_PER_S = 50.0
LONGEST_S = 30.0
TICKET_TTL_S = 300.0  # of the oldest ticket that is accepted
AHEAD_S = 60.0  # how far the clock of another replica may be ahead


def automatic(limit: Callable[[], float]) -> Callable[[], float]:
    """Return the rate of `auto`: enough to reopen all streams of the replica every `BURST_S`."""
    return lambda: max(LEAST_PER_S, limit() / BURST_S)


class OpeningRate:
    """Rate limit per owner, a key or an address: `per_s` of `counted` a second after a burst; None: no limit.

    Each owner has a token bucket of `BURST_S` seconds of the rate, so that one address can fill a replica at once, as a
    load balancer does after the loss of another replica. Source: RFC 2697, "A Single Rate Three Color Marker".
    """

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
        """Return the tokens that an owner has now. Raises: TooManyOpenings if that is less than one."""
        most = max(1.0, BURST_S * per_s)
        tokens, since_s = self._buckets.get(owner, (most, now))
        tokens = min(most, tokens + per_s * (now - since_s))
        if tokens < 1:
            text = f"more than {per_s:g} {self._counted} per second from one key or address; retry later"
            raise TooManyOpenings(text, owner)
        return tokens


class Quotas:
    """Open calls by key id: a call is one connection or upload with any number of channels.

    That is the unit that operators sell. Limits of the replica count channels: the unit of load.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def take(self, owner: str, limit: int | None) -> Lease:
        """Count a call of a key; `limit` None: no limit. Raises: TooManyStreams."""
        if limit is not None and self._open.get(owner, 0) >= limit:
            raise TooManyStreams(f"this key may have {limit} streams open at a time; close one or retry later")
        self._open[owner] += 1
        return Lease(self._open, owner)


class Lease:
    """One call's share of its key's quota, until it is released."""

    def __init__(self, open_calls: Counter[str], owner: str) -> None:
        self._open = open_calls
        self._owner = owner
        self._released = False

    def release(self) -> None:
        """Stop counting the call."""
        assert not self._released, "a lease can be released only once"
        self._released = True
        self._open[self._owner] -= 1
        if not self._open[self._owner]:
            del self._open[self._owner]


class RetryAfter:
    """`Retry-After` of one server: spreads refused clients over time at `RETRIES_PER_S`, up to `LONGEST_S` each."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._latest_s = 0.0  # time at which the last refused client should retry
        self._rng = rng or random.Random()
        self.processes = 1
        """Processes that refuse clients at the same time; each spreads its share."""

    def seconds(self, shortest_s: int, now: float) -> int:
        """Return whole seconds to wait: `shortest_s` while few are refused; random once `LONGEST_S` is reached."""
        self._latest_s = max(now + shortest_s, min(self._latest_s + self.processes / RETRIES_PER_S, now + LONGEST_S))
        wait_s = self._latest_s - now
        if wait_s >= LONGEST_S:
            wait_s = self._rng.uniform(LONGEST_S / 2, LONGEST_S)
        return max(shortest_s, round(wait_s))


class UsedTickets:
    """Ids of used tickets, until they have expired."""

    def __init__(self, ttl_s: float, clock: Callable[[], float]) -> None:
        """`ttl_s`: seconds for which a ticket is valid. `clock` is seconds since 1970."""
        self._keep_s = ttl_s + AHEAD_S
        self._clock = clock
        self._issued_s: dict[bytes, float] = {}  # by ticket id, in order of use

    def __len__(self) -> int:
        return len(self._issued_s)

    def __contains__(self, ticket: object) -> bool:
        return ticket in self._issued_s

    def add(self, ticket: bytes, issued_s: float) -> None:
        """Mark a ticket as used."""
        now = self._clock()
        while self._issued_s and now - next(iter(self._issued_s.values())) > self._keep_s:
            del self._issued_s[next(iter(self._issued_s))]
        self._issued_s[ticket] = max(now, issued_s)
