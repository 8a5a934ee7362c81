"""Resume tickets that a stream has continued from: each can be used once."""

from __future__ import annotations

from collections.abc import Callable

TICKET_TTL_S = 300.0  # of the oldest ticket that is accepted
AHEAD_S = 60.0  # how far the clock of another replica may be ahead


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
