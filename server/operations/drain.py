"""The open sessions of this replica, and the drain that ends them before the process stops.

A drain refuses new sessions, lets open ones finish, asks the rest to end, and calls back when none is left. Signals and
process exit are handled elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import structlog

from server.errors import ServerDraining
from server.operations.metrics import LIVE, Metrics

SPREAD_S = 3.0  # over which sessions are closed, so that their clients do not all reconnect at once
FLUSH_TIMEOUT_S = 3.0  # for finals, summaries and closes of the streams that a drain did not wait for
SPREAD_PER_SESSION_S = 0.05  # few sessions are spread over less than `SPREAD_S`: 20 reconnections per s are harmless
LOST_LINGER_S = 2.0  # how long a replica that has lost its engine still answers 503

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.drain")


class OpenSession(Protocol):
    """A session that a drain can end."""

    def look(self) -> float:
        """Look for messages that wait; return the seconds of audio received and not yet consumed."""

    def drain(self) -> None:
        """Send pending results and end soon; must not block."""


@runtime_checkable
class Leaving(Protocol):
    """A session that another replica may continue."""

    def leave(self) -> bool:
        """Send the client to another replica with its ticket; return False, and do nothing, if it has none."""


class OpenSessions:
    """All open sessions of the app, by protocol."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._sessions: dict[OpenSession, str] = {}
        self._channels: dict[OpenSession, int] = {}
        self._empty: asyncio.Future[None] | None = None
        self._draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def draining(self) -> bool:
        """Whether new sessions are refused."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._metrics.sessions_draining.set(self.channels if draining else 0)

    def refuse_if_draining(self) -> None:
        """Refuse a new session during a drain. Raises: ServerDraining."""
        if self._draining:
            raise ServerDraining("the server is restarting")

    def count(self, protocol: str) -> int:
        """Return the number of open sessions of a protocol."""
        return sum(name == protocol for name in self._sessions.values())

    def counts(self) -> dict[str, int]:
        """Return the number of open sessions by protocol."""
        return dict(Counter(self._sessions.values()))

    def snapshot(self) -> list[OpenSession]:
        """Return the sessions that are open now."""
        return list(self._sessions)

    def holds(self, session: OpenSession) -> bool:
        """Whether this session is open."""
        return session in self._sessions

    @property
    def channels(self) -> int:
        """Channels of all open sessions; each uses a slot of the model."""
        return sum(self._channels.values())

    def add(self, session: OpenSession, protocol: str, channels: int = 1) -> None:
        """Add a new session; `tutti_sessions_active` counts channels of live sessions, not of uploads."""
        self._sessions[session], self._channels[session] = protocol, channels
        if protocol in LIVE:
            self._metrics.sessions_active[protocol].inc(channels)

    def remove(self, session: OpenSession) -> None:
        """Remove an ended session; removing the last one completes the future of `emptied`."""
        protocol, channels = self._sessions.pop(session), self._channels.pop(session)
        if protocol in LIVE:
            self._metrics.sessions_active[protocol].dec(channels)
        if self._draining:
            self._metrics.sessions_draining.set(self.channels)
        if not self._sessions and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def look(self) -> None:
        """Record the backlog of every session in the metric; called twice a second."""
        for session in self._sessions:
            self._metrics.backlog.observe(session.look())

    def emptied(self) -> asyncio.Future[None]:
        """Return a future that is done when no session is open. Call it on the event loop; one caller at a time."""
        if self._empty is None or self._empty.done():
            self._empty = asyncio.get_running_loop().create_future()
            if not self._sessions:
                self._empty.set_result(None)
        return self._empty


class Phase(StrEnum):
    """Progress of a drain."""

    SERVING = "serving"
    WAITING = "waiting"  # for open sessions to end by themselves
    CLOSING = "closing"  # the rest have been asked to end
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """State of a drain, for operators."""

    phase: Phase
    sessions: dict[str, int]
    elapsed_s: float
    remaining_s: float  # until the remaining sessions are asked to end; 0 in every phase but `WAITING`


def combined_drain(reports: Sequence[DrainReport]) -> DrainReport:
    """Return the drain of a service from those of its processes, at least one: the phase of the least advanced.

    While only some processes have begun, `remaining_s` is theirs although the phase is `SERVING`.
    """
    sessions: Counter[str] = Counter()
    for report in reports:
        sessions.update(report.sessions)
    return DrainReport(
        phase=min((report.phase for report in reports), key=list(Phase).index),
        sessions=dict(sessions),
        elapsed_s=max(report.elapsed_s for report in reports),
        remaining_s=max(report.remaining_s for report in reports),
    )


class Drain:
    """The drain of a replica, at most once. All methods except `announce` must be called on the event loop."""

    def __init__(
        self,
        sessions: OpenSessions,
        timeout_s: float,
        clock: Callable[[], float],
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`timeout_s`: for sessions to end by themselves."""
        self._sessions = sessions
        self._timeout_s = timeout_s
        self._clock = clock
        self._jitter = jitter
        self._task: asyncio.Task[None] | None = None
        self._engine_lost: asyncio.Future[None] | None = None  # made by `begin`
        self._callbacks: list[Callable[[], None]] = []
        self._began_s = 0.0
        self.phase = Phase.SERVING
        self.lost: str | None = None  # why the engine was given up, None if it was not

    def announce(self) -> None:
        """Refuse new sessions from now on. May be called on any thread; `begin` must follow."""
        self._sessions.draining = True

    def begin(self) -> bool:
        """Start the drain in the background; return False if one had already begun."""
        if self._task is not None:
            return False
        self.announce()
        self.phase = Phase.WAITING
        self._began_s = self._clock()
        self._engine_lost = asyncio.get_running_loop().create_future()
        _log.info("draining", sessions=len(self._sessions), timeout_s=self._timeout_s)
        self._task = asyncio.get_running_loop().create_task(self._run(self._engine_lost))
        return True

    def give_up(self, reason: str) -> None:
        """End all sessions without waiting, because the engine is lost; `lost` keeps the reason."""
        if self.lost is not None:
            return
        self.lost = reason
        _log.critical("the engine is lost, this process ends", reason=reason, sessions=len(self._sessions))
        self.begin()
        if self._engine_lost is not None and not self._engine_lost.done():
            self._engine_lost.set_result(None)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end of the drain, even if sessions are still open."""
        self._callbacks.append(callback)

    def report(self) -> DrainReport:
        """Return the state of the drain."""
        elapsed_s = 0.0 if self.phase is Phase.SERVING else self._clock() - self._began_s
        left_s = self._timeout_s - elapsed_s if self.phase is Phase.WAITING else 0.0
        return DrainReport(self.phase, self._sessions.counts(), elapsed_s, max(0.0, left_s))

    async def _run(self, engine_lost: asyncio.Future[None]) -> None:
        self._spread(self._leave)
        await self._emptied_within(self._timeout_s, engine_lost)
        if len(self._sessions):
            self.phase = Phase.CLOSING
            spread_s = self._spread(self._end)
            await self._emptied_within(spread_s + FLUSH_TIMEOUT_S)
        if self.lost is not None:
            await asyncio.sleep(max(0.0, self._began_s + LOST_LINGER_S - self._clock()))
        self.phase = Phase.DRAINED
        _log.info("drained", sessions=len(self._sessions), elapsed_s=round(self._clock() - self._began_s, 3))
        for callback in self._callbacks:
            callback()

    def _spread(self, action: Callable[[OpenSession], None]) -> float:
        """Apply `action` to each open session after a random delay; return the longest delay possible."""
        sessions = self._sessions.snapshot()
        spread_s = min(SPREAD_S, len(sessions) * SPREAD_PER_SESSION_S)
        loop = asyncio.get_running_loop()
        for session in sessions:
            loop.call_later(self._jitter(0.0, spread_s), action, session)
        return spread_s

    def _leave(self, session: OpenSession) -> None:
        if isinstance(session, Leaving) and self._sessions.holds(session):
            session.leave()

    def _end(self, session: OpenSession) -> None:
        if self._sessions.holds(session):
            session.drain()

    async def _emptied_within(self, seconds: float, *cut_short_by: asyncio.Future[None]) -> None:
        awaited = [self._sessions.emptied(), *cut_short_by]
        await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
