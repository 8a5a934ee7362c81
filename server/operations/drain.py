"""Which sessions are open on this replica, and how they end when it must stop.

A drain refuses whoever is new, lets whoever is here finish, asks the rest to end, and says when nobody is left. What
stops the process then, and what began it, is not known here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import structlog

from server.errors import ServerDraining
from server.operations.metrics import Metrics

SPREAD_PER_SESSION_S = 0.05
"""Few sessions are asked to end sooner than `spread_s` would have it: twenty reconnections a second hurt nobody."""
LOST_LINGER_S = 2.0
"""A replica that has lost its engine still answers for so long: 503 instead of a refused connection."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.drain")


class OpenSession(Protocol):
    """What can be asked of a session that is open."""

    @property
    def backlog_s(self) -> float:
        """Audio received and not yet consumed."""

    def drain(self) -> None:
        """Say what is pending and end soon; must not wait."""


@runtime_checkable
class Leaving(Protocol):
    """A session that may be able to go on at another replica."""

    def leave(self) -> bool:
        """Send the client elsewhere at once with all that it needs; False, and nothing done, if it cannot be sent."""


class OpenSessions:
    """Every session of the app. Once draining, none is added and the last one to go wakes `emptied`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._sessions: dict[OpenSession, str] = {}
        self._empty: asyncio.Future[None] | None = None
        self._draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def draining(self) -> bool:
        """Whether nobody new is taken."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._metrics.sessions_draining.set(len(self._sessions) if draining else 0)

    def refuse_if_draining(self) -> None:
        """Raises: ServerDraining."""
        if self._draining:
            raise ServerDraining("the server is restarting")

    def count(self, protocol: str) -> int:
        """Sessions open in this protocol."""
        return sum(name == protocol for name in self._sessions.values())

    def counts(self) -> dict[str, int]:
        """Sessions open, by protocol."""
        return dict(Counter(self._sessions.values()))

    def everyone(self) -> list[OpenSession]:
        """The sessions open now."""
        return list(self._sessions)

    def holds(self, session: OpenSession) -> bool:
        """Whether this session is still open."""
        return session in self._sessions

    def add(self, session: OpenSession, protocol: str) -> None:
        """A session began."""
        self._sessions[session] = protocol
        self._metrics.sessions_active[protocol].inc()

    def remove(self, session: OpenSession) -> None:
        """A session ended."""
        self._metrics.sessions_active[self._sessions.pop(session)].dec()
        if self._draining:
            self._metrics.sessions_draining.set(len(self._sessions))
        if not self._sessions and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def observe_backlog(self) -> None:
        """Sample every session's backlog into the metric."""
        for session in self._sessions:
            self._metrics.backlog.observe(session.backlog_s)

    def emptied(self) -> asyncio.Future[None]:
        """Return what is done when nobody is left. On the loop; one caller at a time."""
        if self._empty is None or self._empty.done():
            self._empty = asyncio.get_running_loop().create_future()
            if not self._sessions:
                self._empty.set_result(None)
        return self._empty


class Phase(StrEnum):
    """How far a drain is."""

    SERVING = "serving"
    WAITING = "waiting"  # for the open sessions to end by themselves
    CLOSING = "closing"  # the rest have been asked to end
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """What the operator sets, in seconds."""

    timeout_s: float  # for sessions to end by themselves
    spread_s: float  # over which those left, or sent elsewhere, are told, at most
    linger_s: float  # at least so long is "draining" answered before the end
    flush_s: float  # for finals, summaries and closes of those that were told


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The progress of a drain."""

    phase: Phase
    sessions: dict[str, int]
    elapsed_s: float
    remaining_s: float
    """Until the sessions left are asked to end; 0 before a drain and behind that."""


class Drain:
    """The one drain of a replica's life. On the event loop, but for what says otherwise."""

    def __init__(
        self,
        sessions: OpenSessions,
        times: DrainTimes,
        clock: Callable[[], float],
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._sessions = sessions
        self._times = times
        self._clock = clock
        self._jitter = jitter
        self._task: asyncio.Task[None] | None = None
        self._hurry: asyncio.Future[None] | None = None
        self._whenever_done: list[Callable[[], None]] = []
        self._began_s = 0.0
        self.phase = Phase.SERVING
        self.lost: str | None = None
        """Why the engine was given up, if that is what began the drain."""

    def announce(self) -> None:
        """Refuse whoever is new from this moment. On any thread; `begin` has to follow."""
        self._sessions.draining = True

    def begin(self) -> bool:
        """Drain in the background; return False if that had begun before."""
        if self._task is not None:
            return False
        self.announce()
        self.phase = Phase.WAITING
        self._began_s = self._clock()
        self._hurry = asyncio.get_running_loop().create_future()
        _log.info("draining", sessions=len(self._sessions), timeout_s=self._times.timeout_s)
        self._task = asyncio.get_running_loop().create_task(self._run())
        return True

    def give_up(self, reason: str) -> None:
        """Nothing can be recognised here any more: end everything now, and let `lost` say why."""
        if self.lost is not None:
            return
        self.lost = reason
        _log.critical("the engine is lost, this process ends", reason=reason, sessions=len(self._sessions))
        self.begin()
        if self._hurry is not None and not self._hurry.done():
            self._hurry.set_result(None)

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this when nobody is left, or nobody was willing to go."""
        self._whenever_done.append(call)

    def report(self) -> DrainReport:
        """Say how far it is."""
        elapsed_s = 0.0 if self.phase is Phase.SERVING else self._clock() - self._began_s
        left_s = self._times.timeout_s - elapsed_s if self.phase is Phase.WAITING else 0.0
        return DrainReport(self.phase, self._sessions.counts(), elapsed_s, max(0.0, left_s))

    async def _run(self) -> None:
        self._send_away(self._leave)
        if not await self._ends_within(self._times.timeout_s):
            self.phase = Phase.CLOSING
            spread_s = self._send_away(self._ask)
            await self._ends_within(spread_s + self._times.flush_s, hurry=False)
        linger_s = LOST_LINGER_S if self.lost is not None else self._times.linger_s
        await asyncio.sleep(max(0.0, self._began_s + linger_s - self._clock()))
        self.phase = Phase.DRAINED
        _log.info("drained", sessions=len(self._sessions), elapsed_s=round(self._clock() - self._began_s, 3))
        for call in self._whenever_done:
            call()

    def _send_away(self, tell: Callable[[OpenSession], None]) -> float:
        """Tell every session, each at a moment of its own; return within how many seconds."""
        everyone = self._sessions.everyone()
        spread_s = min(self._times.spread_s, len(everyone) * SPREAD_PER_SESSION_S)
        loop = asyncio.get_running_loop()
        for session in everyone:
            loop.call_later(self._jitter(0.0, spread_s), tell, session)
        return spread_s

    def _leave(self, session: OpenSession) -> None:
        if isinstance(session, Leaving) and self._sessions.holds(session):
            session.leave()

    def _ask(self, session: OpenSession) -> None:
        if self._sessions.holds(session):
            session.drain()

    async def _ends_within(self, seconds: float, *, hurry: bool = True) -> bool:
        awaited: list[asyncio.Future[None]] = [self._sessions.emptied()]
        if hurry and self._hurry is not None:
            awaited.append(self._hurry)
        await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not len(self._sessions)
