"""When and where to try again after a lost or refused connection. Pure: told the time, and given its randomness.

Owns the choice between several addresses, the waits, and the moment of giving up. Knows no socket.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tutti_asr_client.errors import ClientError, ClosedAbnormally, Refused, Unreachable

WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 499})
"""Of the HTTP statuses below 500, those that speak of the moment and not of what was asked."""

FOR_GOOD = frozenset({1000, 1002, 1003, 1007, 1008, 1009, 1010})
"""Close codes that the same audio would meet again, and the one that means an end (RFC 6455 §7.4.1)."""


STEADY_S = 30.0
"""A connection that lasted so long was a good one, whatever it settled: a silent stream settles nothing."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How patient a client is.

    `limit_s` bounds the time without a connection since the server last settled something (a final, a ticket). Waits
    begin below `first_wait_s`, double with each round over the addresses and end at `longest_wait_s`; each is drawn
    between half and all of that. A server's Retry-After is a wait's lower bound. An address where nobody answers is
    told at once when no server has answered yet, unless `await_server`.
    """

    limit_s: float = 60.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0
    await_server: bool = False


def is_final(error: ClientError) -> bool:
    """Whether another try would end in the same way."""
    if isinstance(error, Refused):
        return error.status < 500 and error.status not in WORTH_ANOTHER_TRY
    if isinstance(error, ClosedAbnormally):
        return error.code in FOR_GOOD
    return not isinstance(error, Unreachable)


@dataclass(frozen=True, slots=True)
class Next:
    """The next try: where, and in how many seconds."""

    url: str
    wait_s: float


class Attempts:
    """The tries of one stream, over several addresses in turn."""

    def __init__(self, urls: Sequence[str], retry: Retry, rng: random.Random | None = None) -> None:
        if not urls:
            raise ValueError("no address")
        self._urls = list(urls)
        self._retry = retry
        self._rng = rng or random.Random()
        self._turn = 0  # index of the address in use
        self._not_before = [0.0] * len(self._urls)
        self._failures = 0  # in a row
        self._without_s = 0.0  # time without a connection, since something was settled
        self._lost_at: float | None = None
        self._connected_at: float | None = None
        self._ever = False  # some server has answered

    @property
    def url(self) -> str:
        """The address in use."""
        return self._urls[self._turn]

    @property
    def failures(self) -> int:
        """Tries and connections in a row that settled nothing."""
        return self._failures

    def connected(self, now: float) -> None:
        """A connection is open: time without one does not run."""
        self._ever = True
        self._connected_at = now
        if self._lost_at is not None:
            self._without_s += now - self._lost_at
            self._lost_at = None

    def settled(self) -> None:
        """The server has settled something: patience begins anew."""
        self._failures = 0
        self._without_s = 0.0

    def failed(self, error: ClientError, now: float) -> Next:
        """What to do after a lost connection or a failed try.

        Raises:
            ClientError: the error itself, when another try is of no use or patience is over.
        """
        if is_final(error):
            raise error
        if self._connected_at is not None and now - self._connected_at >= STEADY_S:
            self.settled()
        self._connected_at = None
        if self._lost_at is None:
            self._lost_at = now
        if isinstance(error, Refused):
            self._ever = True
            self._not_before[self._turn] = now + (error.retry_after_s or 0.0)
        self._failures += 1
        first_round = self._failures < len(self._urls)
        if isinstance(error, Unreachable) and not (self._ever or self._retry.await_server or first_round):
            raise error
        self._turn = self._next_turn(now)
        wait_s = max(self._back_off(), self._not_before[self._turn] - now)
        if self._without_s + (now + wait_s - self._lost_at) > self._retry.limit_s:
            raise error
        return Next(self.url, wait_s)

    def _next_turn(self, now: float) -> int:
        """The address after this one, unless a later one may be asked sooner."""
        count = len(self._urls)
        turns = [(self._turn + step) % count for step in range(1, count + 1)]
        return min(turns, key=lambda turn: max(0.0, self._not_before[turn] - now))

    def _back_off(self) -> float:
        retry = self._retry
        rounds = (self._failures - 1) // len(self._urls)
        if rounds == 0:  # soon, but not all clients of a lost server in one moment
            return self._rng.uniform(0.0, retry.first_wait_s)
        return min(retry.longest_wait_s, retry.first_wait_s * 2.0**rounds) * self._rng.uniform(0.5, 1.0)
