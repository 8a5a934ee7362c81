"""Retry policy after a lost or refused connection: the next address, the wait, and when to give up.

Pure: the time and the random generator are arguments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tutti_asr_client.errors import ClientError, ClosedAbnormally, Refused, Unreachable

RETRYABLE_STATUSES = frozenset({408, 425, 429, 499})
"""HTTP statuses below 500 that are temporary; every status from 500 on is."""

PERMANENT_CLOSE_CODES = frozenset({1000, 1002, 1003, 1007, 1008, 1009, 1010})
"""Close codes that the same audio would cause again, and 1000, the normal end (RFC 6455 §7.4.1)."""

STABLE_AFTER_S = 30.0
"""A connection that lasted this long resets the budget, like a final: a silent stream has no finals."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry budget of a stream.

    `limit_s` limits the time without a connection since the server's last final or ticket. Waits start below
    `first_wait_s`, double with each round over the addresses up to `longest_wait_s`, and are randomized between half
    and all of that. A server's Retry-After is a lower bound. Until a server has answered once, an unreachable address
    is an error at once, unless `await_server`.
    """

    limit_s: float = 60.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0
    await_server: bool = False


def is_permanent(error: ClientError) -> bool:
    """Return whether another attempt would fail in the same way."""
    if isinstance(error, Refused):
        return error.status < 500 and error.status not in RETRYABLE_STATUSES
    if isinstance(error, ClosedAbnormally):
        return error.code in PERMANENT_CLOSE_CODES
    return not isinstance(error, Unreachable)


@dataclass(frozen=True, slots=True)
class NextTry:
    """Address of the next attempt, and the wait before it."""

    url: str
    wait_s: float


class Attempts:
    """Counts the failures of one stream over its addresses, and chooses the next attempt."""

    def __init__(self, urls: Sequence[str], retry: Retry, rng: random.Random | None = None) -> None:
        if not urls:
            raise ValueError("urls: at least one address is required")
        self._urls = list(urls)
        self._retry = retry
        self._rng = rng or random.Random()
        self._index = 0  # index of the address in use
        self._not_before = [0.0] * len(self._urls)
        self.failures = 0  # failed attempts and lost connections since the last final or ticket
        self._disconnected_s = 0.0  # time without a connection, since the last reset of the budget
        self._lost_at: float | None = None
        self._connected_at: float | None = None
        self._server_answered = False

    @property
    def url(self) -> str:
        """The address in use."""
        return self._urls[self._index]

    def connected(self, now: float) -> None:
        """Record that a connection is open; the time without one stops."""
        self._server_answered = True
        self._connected_at = now
        if self._lost_at is not None:
            self._disconnected_s += now - self._lost_at
            self._lost_at = None

    def reset_budget(self) -> None:
        """Reset the budget: the server sent a final or a ticket."""
        self.failures = 0
        self._disconnected_s = 0.0

    def failed(self, error: ClientError, now: float) -> NextTry:
        """Return the next attempt after a lost or failed connection.

        Raises:
            ClientError: the error itself, if it is permanent or the budget is exhausted.
        """
        if is_permanent(error):
            raise error
        if self._connected_at is not None and now - self._connected_at >= STABLE_AFTER_S:
            self.reset_budget()
        self._connected_at = None
        if self._lost_at is None:
            self._lost_at = now
        if isinstance(error, Refused):
            self._server_answered = True
            self._not_before[self._index] = now + (error.retry_after_s or 0.0)
        self.failures += 1
        first_round = self.failures < len(self._urls)
        if isinstance(error, Unreachable) and not (self._server_answered or self._retry.await_server or first_round):
            raise error
        self._index = self._next_index(now)
        wait_s = max(self._back_off(), self._not_before[self._index] - now)
        if self._disconnected_s + (now + wait_s - self._lost_at) > self._retry.limit_s:
            raise error
        return NextTry(self.url, wait_s)

    def _next_index(self, now: float) -> int:
        """Return the index of the next address, or of a later one whose Retry-After ends sooner."""
        count = len(self._urls)
        indices = [(self._index + step) % count for step in range(1, count + 1)]
        return min(indices, key=lambda index: max(0.0, self._not_before[index] - now))

    def _back_off(self) -> float:
        retry = self._retry
        rounds = (self.failures - 1) // len(self._urls)
        if rounds == 0:  # soon, but at random times: all clients of a lost server reconnect now
            return self._rng.uniform(0.0, retry.first_wait_s)
        return min(retry.longest_wait_s, retry.first_wait_s * 2.0**rounds) * self._rng.uniform(0.5, 1.0)
