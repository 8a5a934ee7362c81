"""Front ends: connections held while none is ready, replacement, rest after repeated ends, and the end of a drain."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from structlog.testing import capture_logs

from server.operations.process import EXIT_LOST
from server.processes.front_ends import MAX_HELD, RESTARTS, FrontEnds
from server.processes.messages import Accepted, Drain, Load
from tests.server.processes.children import FakeChild, settled


class Fronts:
    """`FrontEnds` over fake children."""

    def __init__(self, count: int) -> None:
        self.started: list[FakeChild] = []
        self.gone: list[int] = []
        self.ready = True
        self.now = 1_000.0
        self.fronts = FrontEnds(
            count, self._start, on_gone=lambda child: self.gone.append(child.number), clock=lambda: self.now
        )

    def pass_time(self, seconds: float, *reporting: FakeChild) -> None:
        """Let time pass in which only these front ends report."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            for child in reporting:
                self.fronts.loaded(child, Load(connections=0, received=0))  # type: ignore[arg-type]
            self.fronts.look()

    async def _start(self) -> Any:
        child = FakeChild()
        self.started.append(child)
        if self.ready:
            child.ready.set_result(None)
        return child

    def end(self, child: FakeChild) -> None:
        child.process.returncode = -9
        self.fronts.ended(child)  # type: ignore[arg-type]


def received(child: FakeChild) -> int:
    return sum(isinstance(message, Accepted) for message, _ in child.channel.sent)


async def test_connections_are_spread_evenly_and_ended_ones_count_no_more() -> None:
    fronts = Fronts(3)
    await fronts.fronts.begin()
    for number in range(30):
        fronts.fronts.hand_on("http", number + 1_000)
    assert [received(child) for child in fronts.started] == [10, 10, 10]
    first = fronts.started[0]
    fronts.fronts.loaded(first, Load(connections=2, received=10))  # type: ignore[arg-type]
    for number in range(8):
        fronts.fronts.hand_on("http", number + 2_000)
    assert received(first) == 18


async def test_a_silent_front_end_gets_no_connections_and_is_killed_after_ten_seconds() -> None:
    fronts = Fronts(2)
    await fronts.fronts.begin()
    hung, working = fronts.started
    fronts.pass_time(1.0, hung, working)
    fronts.pass_time(3.0, working)
    for number in range(6):
        fronts.fronts.hand_on("http", number + 1_000)
    assert (received(hung), received(working)) == (0, 6)
    fronts.pass_time(6.5, working)
    assert hung.alive
    fronts.pass_time(1.0, working)
    assert not hung.alive
    assert working.alive


async def test_a_front_end_is_not_killed_because_the_supervisor_itself_was_stopped() -> None:
    fronts = Fronts(1)
    await fronts.fronts.begin()
    fronts.pass_time(1.0, fronts.started[0])
    fronts.now += 3_600.0
    fronts.fronts.look()
    assert fronts.started[0].alive


async def test_connections_wait_while_no_front_end_is_ready() -> None:
    fronts = Fronts(1)
    fronts.ready = False
    starting = asyncio.ensure_future(fronts.fronts.begin())
    await settled()
    ends = [os.open(os.devnull, os.O_RDONLY) for _ in range(MAX_HELD + 1)]
    for end in ends:
        fronts.fronts.hand_on("http", end)
    fronts.started[0].ready.set_result(None)
    await starting
    assert received(fronts.started[0]) == MAX_HELD, "one more was closed"
    for end in ends[:-1]:
        os.close(end)


async def test_a_front_end_that_ended_is_replaced_and_its_leases_are_returned() -> None:
    fronts = Fronts(2)
    await fronts.fronts.begin()
    fronts.end(fronts.started[0])
    await settled()
    assert fronts.gone == [fronts.started[0].number]
    assert fronts.fronts.ready == fronts.started[1:]


async def test_the_drain_ends_when_each_front_end_is_drained_or_has_ended() -> None:
    fronts = Fronts(2)
    await fronts.fronts.begin()
    fronts.fronts.begin_drain()
    fronts.fronts.drained(fronts.started[0])  # type: ignore[arg-type]
    assert not fronts.fronts.empty.is_set()
    fronts.end(fronts.started[1])
    await settled()
    assert fronts.fronts.empty.is_set()
    assert len(fronts.started) == 2


async def test_a_front_end_that_starts_during_a_drain_drains_too() -> None:
    fronts = Fronts(1)
    fronts.ready = False
    starting = asyncio.ensure_future(fronts.fronts.begin())
    await settled()
    fronts.fronts.begin_drain()
    fronts.started[0].ready.set_result(None)
    await starting
    assert any(isinstance(message, Drain) for message, _ in fronts.started[0].channel.sent)


async def test_while_no_front_end_may_be_started_connections_get_503() -> None:
    fronts = Fronts(1)
    await fronts.fronts.begin()
    with capture_logs() as lines:
        for _ in range(RESTARTS + 1):
            fronts.end(fronts.started[-1])
            await settled()
    assert lines[-1]["event"] == "front ends end too often: the next one starts later"
    assert (lines[-1]["seconds"], lines[-1]["left"]) == (60, 0)
    client, served = socket.socketpair()
    fronts.fronts.hand_on("http", served.detach())
    reader, writer = await asyncio.open_connection(sock=client)
    writer.write(b"GET /v1/listen HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 60\r\n")
    await fronts.fronts.stop()


async def test_front_ends_whose_engine_has_another_model_are_all_replaced_at_once() -> None:
    fronts = Fronts(RESTARTS + 2)
    await fronts.fronts.begin()
    for child in list(fronts.started):
        child.process.returncode = EXIT_LOST
        fronts.fronts.ended(child)  # type: ignore[arg-type]
    await settled()
    assert len(fronts.fronts.ready) == RESTARTS + 2
