"""The coordinator of a server with one process: quotas, room and retry times are objects of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from server.coordination.quota import Lease, Quotas
from server.coordination.retry_after import RetryAfter
from server.errors import ServerFull


class Room(Protocol):
    """Capacity check for a new stream."""

    def refuse_if_full(self) -> None:
        """Refuse a stream for which there is no room. Raises: ServerFull."""


class LocalCoordinator:
    """Implements `Coordinator`; its answers never wait."""

    def __init__(self, room: Room, clock: Callable[[], float]) -> None:
        self.quotas = Quotas()
        self._room = room
        self._retry = RetryAfter()
        self._clock = clock

    async def enter(self, owner: str, limit: int | None) -> Lease:
        """Count a call of this key. Raises: TooManyStreams, ServerFull; nothing is counted then."""
        lease = self.quotas.take(owner, 1, limit)
        try:
            self._room.refuse_if_full()
        except ServerFull:
            lease.release()
            raise
        return lease

    def refuse_if_full(self) -> None:
        """Refuse a call for which there is no room now. Raises: ServerFull."""
        self._room.refuse_if_full()

    def retry_after_s(self, shortest_s: int) -> int:
        """Return the whole seconds after which a refused client should come again."""
        return self._retry.seconds(shortest_s, self._clock())
