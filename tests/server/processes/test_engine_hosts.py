"""Engine hosts: a spare takes over, lost ones are replaced, a restart moves the streams, repeated losses end it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.errors import EngineDead
from server.processes.engine_hosts import DEATHS, EngineHosts
from tests.server.processes.children import FakeChild, on_a_loop


class Hosts:
    """`EngineHosts` over fake children; `ready` lets each become ready at once."""

    def __init__(self, *, spare: bool, ready: bool = True) -> None:
        self.started: list[FakeChild] = []
        self.moves = 0
        self.lost: list[str] = []
        self.now = 1_000.0
        self._ready = ready
        self.hosts = EngineHosts(
            self._start,
            spare=spare,
            timeout_s=60.0,
            on_moved=self._moved,
            on_lost=self.lost.append,
            clock=lambda: self.now,
        )

    async def _start(self) -> Any:
        child = FakeChild()
        self.started.append(child)
        if self._ready:
            child.ready.set_result(None)
        return child

    def _moved(self) -> None:
        self.moves += 1

    def kill(self, child: FakeChild) -> None:
        child.process.returncode = -9
        self.hosts.ended(child)  # type: ignore[arg-type]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@on_a_loop
async def test_a_spare_takes_over_at_once_and_another_one_is_started() -> None:
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    await settled()
    first, spare = hosts.started
    assert await hosts.hosts.current() is first
    hosts.kill(first)
    assert await hosts.hosts.current() is spare
    await settled()
    assert hosts.moves == 0, "front ends notice the end by themselves, and would connect twice"
    assert len(hosts.started) == 3


@on_a_loop
async def test_without_a_spare_requests_wait_for_the_next_host() -> None:
    hosts = Hosts(spare=False)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    hosts._ready = False
    hosts.kill(hosts.started[0])
    waiting = asyncio.ensure_future(hosts.hosts.current())
    await settled()
    assert not waiting.done()
    hosts.started[1].ready.set_result(None)
    assert await waiting is hosts.started[1]


@on_a_loop
async def test_a_spare_that_is_still_starting_serves_once_it_is_ready() -> None:
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    hosts._ready = False
    hosts.started[0].process.returncode = None
    await settled()
    spare = hosts.started[1]
    spare.ready = asyncio.get_running_loop().create_future()
    hosts.kill(hosts.started[0])
    waiting = asyncio.ensure_future(hosts.hosts.current())
    await settled()
    assert not waiting.done()
    spare.ready.set_result(None)
    assert await waiting is spare


@on_a_loop
async def test_a_restart_serves_with_the_new_host_and_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.processes.engine_hosts.LET_GO_S", 0.0)
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    await settled()
    old = list(hosts.started)
    await hosts.hosts.restart()
    await settled()
    assert await hosts.hosts.current() is hosts.started[2]
    assert hosts.moves == 1
    assert all(child.stopped for child in old)
    assert len(hosts.started) == 4, "the new host has a spare of its own"


@on_a_loop
async def test_a_restart_that_fails_leaves_the_present_host() -> None:
    hosts = Hosts(spare=False)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    hosts._ready = False
    restart = asyncio.ensure_future(hosts.hosts.restart())
    await settled()
    hosts.started[1].ready.set_exception(EngineDead("out of memory"))
    with pytest.raises(EngineDead, match="out of memory"):
        await restart
    assert await hosts.hosts.current() is hosts.started[0]
    assert not hosts.lost


@on_a_loop
async def test_hosts_that_end_again_and_again_are_given_up() -> None:
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    for _ in range(DEATHS):
        await settled()
        hosts.now += 1.0
        hosts.kill(await hosts.hosts.current())  # type: ignore[arg-type]
    assert hosts.lost
    with pytest.raises(EngineDead):
        await hosts.hosts.current()


@on_a_loop
async def test_one_end_every_ten_seconds_is_carried_on() -> None:
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    for _ in range(30):
        await settled()
        hosts.now += 10.0
        hosts.kill(await hosts.hosts.current())  # type: ignore[arg-type]
    assert not hosts.lost


@on_a_loop
async def test_hosts_that_cannot_start_are_given_up() -> None:
    hosts = Hosts(spare=False)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    hosts._ready = False
    hosts.kill(hosts.started[0])
    for _ in range(2):
        await settled()
        hosts.started[-1].ready.set_exception(EngineDead("no memory"))
    await settled()
    assert hosts.lost


@on_a_loop
async def test_a_host_that_hangs_or_is_silent_is_killed() -> None:
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    await settled()
    first, spare = hosts.started
    for child in (first, spare):
        hosts.hosts.reported(child, 0.0)  # type: ignore[arg-type]
    hosts.hosts.reported(first, 59.0)  # type: ignore[arg-type]
    assert first.alive
    hosts.now += 61.0
    hosts.hosts.reported(spare, 61.0)  # type: ignore[arg-type]
    assert not spare.alive, "at one step for too long"
    hosts.hosts.look()
    assert not first.alive, "without a report"


@on_a_loop
async def test_a_spare_is_started_once_however_often_it_is_looked_for() -> None:
    hosts = Hosts(spare=True)
    await hosts.hosts.begin()
    hosts.hosts.look_after_spare()
    hosts.hosts.look_after_spare()
    await hosts.hosts.restart()
    await settled()
    alive = [child for child in hosts.started if not child.leaving]
    assert len(alive) == 2, "the host that serves, and its spare"
