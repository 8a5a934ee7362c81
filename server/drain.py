"""Which sessions are open on this replica, and how they end when it must stop."""

from __future__ import annotations

import asyncio
from typing import Protocol

from server.errors import ServerDraining
from server.metrics import Metrics


class OpenSession(Protocol):
    """What can be asked of a session that is open."""

    @property
    def backlog_s(self) -> float:
        """Audio received and not yet consumed."""

    def drain(self) -> None:
        """Say what is pending and end soon; must not wait."""


class OpenSessions:
    """Every session of the app. Once draining, none is added and the last one to go wakes `drained`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._sessions: dict[OpenSession, str] = {}
        self._empty: asyncio.Future[None] | None = None
        self.draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    def refuse_if_draining(self) -> None:
        """Raises: ServerDraining."""
        if self.draining:
            raise ServerDraining("the server is restarting")

    def count(self, protocol: str) -> int:
        """Sessions open in this protocol."""
        return sum(name == protocol for name in self._sessions.values())

    def add(self, session: OpenSession, protocol: str) -> None:
        """A session began."""
        self._sessions[session] = protocol
        self._metrics.sessions_active[protocol].inc()

    def remove(self, session: OpenSession) -> None:
        """A session ended."""
        self._metrics.sessions_active[self._sessions.pop(session)].dec()
        if self.draining:
            self._metrics.sessions_draining.set(len(self._sessions))
        if not self._sessions and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def observe_backlog(self) -> None:
        """Sample every session's backlog into the metric."""
        for session in self._sessions:
            self._metrics.backlog.observe(session.backlog_s)

    async def drain(self, timeout_s: float, flush_s: float) -> None:
        """Refuse new sessions, let the open ones end by themselves, then ask the rest to; return when none is left.

        A session that does not even end within `flush_s` of being asked is left to the server's own shutdown.
        """
        self.draining = True
        self._metrics.sessions_draining.set(len(self._sessions))
        if await self._ends_within(timeout_s):
            return
        for session in list(self._sessions):
            session.drain()
        await self._ends_within(flush_s)

    async def _ends_within(self, seconds: float) -> bool:
        if self._sessions:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=seconds)
        return not self._sessions
