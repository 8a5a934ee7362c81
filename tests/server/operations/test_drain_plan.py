"""Sequence of a drain, with sessions that only record calls."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from server.errors import ServerDraining
from server.operations import drain as drain_module
from server.operations.drain import (
    LOST_LINGER_S,
    SPREAD_PER_SESSION_S,
    Drain,
    DrainReport,
    OpenSessions,
    Phase,
    combined_drain,
)
from server.operations.metrics import Metrics


class Stays:
    """A session that ends when asked to."""

    def __init__(self, sessions: OpenSessions, *, willing: bool = True) -> None:
        self._sessions, self._willing = sessions, willing
        self.asked = 0
        sessions.add(self, "deepgram")

    def look(self) -> float:
        return 0.0

    def drain(self) -> None:
        self.asked += 1
        if self._willing:
            self.end()

    def end(self) -> None:
        self._sessions.remove(self)


class Leaves(Stays):
    """A session that can move to another replica."""

    def __init__(self, sessions: OpenSessions) -> None:
        super().__init__(sessions)
        self.left = asyncio.Event()

    def leave(self) -> bool:
        self.left.set()
        self.end()
        return True


class Bound(Stays):
    """A resumable session without a ticket."""

    def leave(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "SPREAD_S", 0.5)
    monkeypatch.setattr(drain_module, "FLUSH_TIMEOUT_S", 0.1)


def sessions_and_drain(timeout_s: float = 0.0, **extra: Any) -> tuple[OpenSessions, Drain, asyncio.Event]:
    sessions = OpenSessions(Metrics(8, 8))
    drain, done = Drain(sessions, timeout_s, asyncio.get_running_loop().time, **extra), asyncio.Event()
    drain.when_done(done.set)
    return sessions, drain, done


async def test_resumable_sessions_leave_at_once_and_others_may_finish() -> None:
    sessions, drain, done = sessions_and_drain(timeout_s=1_000.0)
    goes, stays, bound = Leaves(sessions), Stays(sessions), Bound(sessions)
    assert drain.report() == DrainReport(Phase.SERVING, {"deepgram": 3}, 0.0, 0.0)
    assert drain.begin()
    assert not drain.begin(), "a drain begins only once"
    with pytest.raises(ServerDraining):
        sessions.refuse_if_draining()
    await goes.left.wait()
    assert goes.asked == 0
    report = drain.report()
    assert (report.phase, report.sessions) == (Phase.WAITING, {"deepgram": 2})
    assert 0 < report.remaining_s <= 1_000
    stays.end()
    bound.end()
    await done.wait()
    assert (stays.asked, bound.asked) == (0, 0)
    assert drain.report().phase is Phase.DRAINED


@pytest.mark.parametrize(("count", "within_s"), [(4, 4 * SPREAD_PER_SESSION_S), (50, 0.5)])
async def test_remaining_sessions_are_asked_to_end_at_random_times_after_the_timeout(
    count: int, within_s: float
) -> None:
    """Few are spread over less time."""
    spans: list[tuple[float, float]] = []

    def jitter(low: float, high: float) -> float:
        spans.append((low, high))
        return 0.0

    sessions, drain, done = sessions_and_drain(jitter=jitter)
    crowd = [Stays(sessions) for _ in range(count)]
    drain.begin()
    await done.wait()
    assert [session.asked for session in crowd] == [1] * count
    assert spans[-count:] == [(0.0, within_s)] * count


async def test_drain_ends_although_a_session_stays_open() -> None:
    sessions, drain, done = sessions_and_drain()
    stubborn = Stays(sessions, willing=False)
    drain.begin()
    await done.wait()
    assert stubborn.asked == 1
    assert drain.report().sessions == {"deepgram": 1}


async def test_lost_engine_skips_the_timeout_and_lingers() -> None:
    sessions, drain, done = sessions_and_drain(timeout_s=1_000.0)
    session = Stays(sessions)
    began_s = asyncio.get_running_loop().time()
    drain.begin()
    drain.give_up("it is gone")
    drain.give_up("again")
    await done.wait()
    assert asyncio.get_running_loop().time() - began_s >= LOST_LINGER_S
    assert (drain.lost, session.asked) == ("it is gone", 1)


def test_reports_of_several_processes_are_those_of_one_drain() -> None:
    reports = [
        DrainReport(Phase.DRAINED, {}, 8.0, 0.0),
        DrainReport(Phase.WAITING, {"deepgram": 2, "vosk": 1}, 7.5, 22.5),
        DrainReport(Phase.CLOSING, {"deepgram": 3, "upload": 1}, 8.5, 0.0),
    ]
    whole = combined_drain(reports)
    assert whole == DrainReport(Phase.WAITING, {"deepgram": 5, "vosk": 1, "upload": 1}, 8.5, 22.5)
    assert combined_drain([whole]) == whole


@pytest.mark.parametrize("phases", list(itertools.combinations_with_replacement(Phase, 2)))
def test_a_drain_of_several_processes_has_the_phase_of_the_least_advanced(phases: tuple[Phase, Phase]) -> None:
    for order in (phases, phases[::-1]):
        assert combined_drain([DrainReport(phase, {}, 0.0, 0.0) for phase in order]).phase is phases[0]
