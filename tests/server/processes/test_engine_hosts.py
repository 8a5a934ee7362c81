"""Engine hosts: a spare takes over, lost ones are replaced, a restart moves the streams, repeated losses end it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.errors import EngineDead, ModelStays, ServerNotReady
from server.processes.engine_hosts import DEATHS, SERVING_POINTS, SPARE_POINTS, EngineAssignment, EngineHosts
from server.processes.messages import Prepare
from tests.server.processes.children import FakeChild, settled


class Hosts:
    """`EngineHosts` over fake children; `ready` lets each become ready at once."""

    def __init__(self, *, spare: bool, ready: bool = True, places: int = 1) -> None:
        self.started: list[FakeChild] = []
        self.moves: list[int] = []
        self.lost: list[str] = []
        self.now = 1_000.0
        self.models: dict[str, str] = {}
        """What the engines of hosts compute that are started from now on."""
        self.in_background: list[bool] = []
        self._ready = ready
        self.hosts = EngineHosts(
            self._start,
            places=places,
            spare=spare,
            timeout_s=60.0,
            on_moved=self.moves.append,
            on_lost=self.lost.append,
            clock=lambda: self.now,
        )

    @classmethod
    async def serving(cls, *, spare: bool = False, places: int = 1) -> Hosts:
        """All hosts serve, and the spare one is ready."""
        hosts = cls(spare=spare, places=places)
        await hosts.hosts.begin()
        hosts.hosts.look_after_spare()
        await settled()
        return hosts

    async def current(self) -> list[Any]:
        """The hosts that serve, by place."""
        return [await self.hosts.current(place) for place in range(len(self.hosts._serving))]

    async def _start(self, in_background: bool) -> Any:
        child = FakeChild()
        child.models = dict(self.models)
        self.in_background.append(in_background)
        self.started.append(child)
        if self._ready:
            child.ready.set_result(None)
        return child

    def kill(self, child: FakeChild) -> None:
        child.process.returncode = -9
        self.hosts.ended(child)  # type: ignore[arg-type]


async def test_requests_during_the_start_wait_until_the_host_is_ready() -> None:
    hosts = Hosts(spare=False, ready=False)
    waiting = asyncio.ensure_future(hosts.hosts.current())
    beginning = asyncio.ensure_future(hosts.hosts.begin())
    await settled()
    late = asyncio.ensure_future(hosts.hosts.current())
    await settled()
    assert not waiting.done()
    assert not late.done()
    hosts.started[0].ready.set_result(None)
    await beginning
    assert [await waiting, await late] == [hosts.started[0]] * 2


async def test_without_a_spare_requests_wait_for_the_next_host() -> None:
    hosts = await Hosts.serving()
    hosts._ready = False
    hosts.kill(hosts.started[0])
    waiting = asyncio.ensure_future(hosts.hosts.current())
    await settled()
    assert not waiting.done()
    hosts.started[1].ready.set_result(None)
    assert await waiting is hosts.started[1]


@pytest.mark.parametrize("first", ["spare", "new"])
async def test_a_host_lost_while_its_spare_starts_is_replaced_by_the_first_that_is_ready(first: str) -> None:
    """The spare loads in the background, which may take long, so a new one is started; the other becomes the spare."""
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts._ready = False
    hosts.hosts.look_after_spare()
    await settled()
    hosts.kill(hosts.started[0])
    waiting = asyncio.ensure_future(hosts.hosts.current())
    await settled()
    spare, new = hosts.started[1:]
    assert not waiting.done()
    assert hosts.in_background == [False, True, False]
    serving, other = (spare, new) if first == "spare" else (new, spare)
    serving.ready.set_result(None)
    assert await waiting is serving
    other.ready.set_result(None)
    await settled()
    assert (serving.points, other.points) == (SERVING_POINTS, SPARE_POINTS)
    hosts.kill(serving)
    assert await hosts.hosts.current() is other
    await settled()
    assert len(hosts.started) == 4, "one spare"


@pytest.mark.parametrize("engine", ["model ", "model es", "vad es"])
async def test_a_restart_with_other_files_is_refused_and_changes_nothing(engine: str) -> None:
    hosts = Hosts(spare=False)
    hosts.models = {"model ": "a", engine: "1"}
    await hosts.hosts.begin()
    hosts.models = {"model ": "a", engine: "2"}
    with pytest.raises(ModelStays, match=r"have changed.*restart the server to serve the new files"):
        await hosts.hosts.restart()
    assert await hosts.hosts.current() is hosts.started[0]
    assert not hosts.started[0].leaving
    assert hosts.started[1].stopped
    assert hosts.moves == []


async def test_a_restart_starts_what_was_loaded_on_demand_before_it_compares() -> None:
    hosts = await Hosts.serving()
    hosts.started[0].models = {"model ": "a", "model es": "1"}
    hosts.models = {"model ": "a"}
    await hosts.hosts.restart()
    assert hosts.started[1].channel.requested == [Prepare("model es")]


async def test_a_host_that_ends_before_a_restart_is_over_is_not_used() -> None:
    hosts = await Hosts.serving(places=2)
    hosts._ready = False
    restart = asyncio.ensure_future(hosts.hosts.restart())
    await settled()
    hosts.started[2].ready.set_result(None)
    await settled()
    hosts.kill(hosts.started[2])
    hosts.started[3].ready.set_result(None)
    with pytest.raises(ServerNotReady, match="has ended"):
        await restart
    assert await hosts.current() == hosts.started[:2]


async def test_a_restart_whose_requester_ends_is_given_up_and_logged() -> None:
    hosts = await Hosts.serving()
    hosts._ready = False
    with capture_logs() as lines:
        restart = asyncio.ensure_future(hosts.hosts.restart())
        await settled()
        restart.cancel()
        await settled()
    assert hosts.started[1].stopped
    assert [line["event"] for line in lines] == ["engine not replaced: the present one continues"]


async def test_a_spare_with_other_files_is_ended_and_a_lost_host_replaced_all_the_same() -> None:
    """All streams end then, and front ends with them; the server comes back with the files that are there."""
    hosts = Hosts(spare=True)
    hosts.models = {"model ": "1"}
    await hosts.hosts.begin()
    hosts.models = {"model ": "2"}
    with capture_logs() as lines:
        hosts.hosts.look_after_spare()
        await settled()
    first, spare = hosts.started
    assert spare.stopped
    assert "there is no spare engine host: the files of the model have changed" in lines[0]["event"]
    with capture_logs() as lines:
        hosts.kill(first)
        assert await hosts.hosts.current() is hosts.started[2]
    assert "the files of the model have changed: open streams end" in lines[-1]["event"]
    await settled()
    assert not hosts.started[3].stopped, "a spare with the files that serve now"


async def test_a_restart_serves_with_the_new_host_and_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.processes.engine_hosts.LET_GO_S", 0.0)
    hosts = await Hosts.serving(spare=True)
    old = list(hosts.started)
    await hosts.hosts.restart()
    await settled()
    assert await hosts.hosts.current() is hosts.started[2]
    assert hosts.moves == [0]
    assert all(child.stopped for child in old)
    assert len(hosts.started) == 4, "the new host has a spare of its own"


@pytest.mark.parametrize(("seconds", "lost"), [(1.0, True), (10.0, False)])
async def test_hosts_that_end_again_and_again_are_given_up(seconds: float, lost: bool) -> None:
    hosts = await Hosts.serving(spare=True)
    for _ in range(DEATHS if lost else 30):
        await settled()
        hosts.now += seconds
        hosts.kill(await hosts.hosts.current())  # type: ignore[arg-type]
    assert bool(hosts.lost) is lost
    if lost:
        with pytest.raises(EngineDead):
            await hosts.hosts.current()


async def test_hosts_that_cannot_start_are_given_up() -> None:
    hosts = await Hosts.serving()
    hosts._ready = False
    hosts.kill(hosts.started[0])
    for _ in range(2):
        await settled()
        hosts.started[-1].ready.set_exception(EngineDead("no memory"))
    await settled()
    assert hosts.lost


async def test_a_host_that_hangs_or_is_silent_is_killed() -> None:
    hosts = await Hosts.serving(spare=True)
    first, spare = hosts.started
    for child in (first, spare):
        hosts.hosts.reported(child, 0.0)  # type: ignore[arg-type]
    hosts.hosts.reported(first, 59.0)  # type: ignore[arg-type]
    assert first.alive
    for _ in range(61):
        hosts.now += 1.0
        hosts.hosts.look()
    hosts.hosts.reported(spare, 61.0)  # type: ignore[arg-type]
    assert not spare.alive, "at one step for too long"
    assert not first.alive, "without a report"


async def test_no_host_is_killed_because_the_supervisor_itself_was_stopped() -> None:
    """A virtual machine was paused, or all processes were frozen: no host could report meanwhile."""
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    (first,) = hosts.started
    hosts.hosts.reported(first, 0.0)  # type: ignore[arg-type]
    hosts.hosts.look()
    hosts.now += 3_600.0
    hosts.hosts.look()
    assert first.alive


async def test_a_silent_spare_is_not_promoted() -> None:
    hosts = await Hosts.serving(spare=True)
    first, spare = hosts.started
    hosts.hosts.reported(spare, 0.0)  # type: ignore[arg-type]
    hosts.now += 3.0
    hosts.kill(first)
    await settled()
    assert not spare.alive
    assert await hosts.hosts.current() is hosts.started[2]


async def test_a_spare_is_started_once_however_often_it_is_looked_for() -> None:
    hosts = await Hosts.serving(spare=True)
    hosts.hosts.look_after_spare()
    await hosts.hosts.restart()
    await settled()
    alive = [child for child in hosts.started if not child.leaving]
    assert len(alive) == 2, "the host that serves, and its spare"


async def test_a_spare_takes_the_place_of_the_host_that_ended_and_the_others_serve_on() -> None:
    hosts = await Hosts.serving(spare=True, places=3)
    first, second, third, spare = hosts.started
    hosts.kill(second)
    assert await hosts.current() == [first, spare, third]
    assert hosts.moves == [], "front ends notice the end by themselves, and would connect twice"
    await settled()
    assert len(hosts.started) == 5, "the spare has a successor"


async def test_of_two_hosts_that_end_at_once_one_gets_the_spare_and_the_other_a_new_one() -> None:
    hosts = await Hosts.serving(spare=True, places=2)
    first, second, spare = hosts.started
    hosts.kill(first)
    hosts._ready = False
    hosts.kill(second)
    assert await hosts.hosts.current(0) is spare
    waiting = asyncio.ensure_future(hosts.hosts.current(1))
    await settled()
    assert not waiting.done()
    for child in hosts.started[3:]:
        child.ready.set_result(None)
    assert await waiting in hosts.started[3:]
    serving = {(await hosts.hosts.current(place)).number for place in range(2)}  # type: ignore[attr-defined]
    assert len(serving) == 2, "no host serves in two places"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_restart_replaces_the_hosts_of_all_places_once_all_new_ones_are_ready_or_none(fails: bool) -> None:
    hosts = await Hosts.serving(places=2)
    before = list(hosts.started)
    hosts._ready = False
    restart = asyncio.ensure_future(hosts.hosts.restart())
    await settled()
    fresh = hosts.started[2:]
    fresh[0].ready.set_result(None)
    await settled()
    assert await hosts.current() == before
    if fails:
        fresh[1].ready.set_exception(EngineDead("out of memory"))
        with pytest.raises(ServerNotReady, match="out of memory"):
            await restart
        assert all(child.stopped for child in fresh)
    else:
        fresh[1].ready.set_result(None)
        await restart
    assert await hosts.current() == (before if fails else fresh)
    assert hosts.moves == ([] if fails else [0, 1])
    assert not hosts.lost


def test_front_ends_are_shared_out_evenly_among_the_places() -> None:
    places = EngineAssignment(3)
    assert [places.assign(number) for number in (11, 12, 13, 14, 15, 16)] == [0, 1, 2, 0, 1, 2]
    assert [places.of(number) for number in (11, 15)] == [0, 1]


def test_a_front_end_gets_the_place_of_the_one_that_it_replaces() -> None:
    places = EngineAssignment(2)
    for number in (1, 2, 3, 4):
        places.assign(number)
    places.forget(2)
    assert places.assign(5) == 1
    assert places.of(2) == 0, "the first place, until it is forgotten everywhere"
