"""A front end's engine on its event loop: what the socket does not take at once is sent when it has room."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, cast

import numpy as np

from batching.batcher import Policy
from batching.events import WarmedUp
from batching.thread.commands import Command, Step
from batching.wire.frames import Hello, Layout, encode_warm
from batching.wire.sockets import CommandReader, data_sockets
from server.models.engine_source import EnginePlan
from server.processes.control import ControlChannel, Parcel
from server.processes.messages import Ready
from server.processes.remote_engine import RemoteEngine
from tests.support.servers.fakes import WAIT_S

SAMPLES, STEPS = 1_280, 8_000  # 20 MB: more than the buffers of a socket
PLAN = EnginePlan("model ", 4, 4, None, Policy.EAGER, STEPS, 0.08)


class OneEngine:
    """A control channel that connects to one end of a socket; the test has the other end."""

    def __init__(self) -> None:
        self.theirs, self._end = data_sockets()

    async def exchange(self, _message: object) -> Parcel:
        """Return the socket."""
        return Parcel(Ready(), (self._end.detach(),))


async def commands_of(end: socket.socket, count: int) -> list[Command]:
    """Read this many commands."""
    reader = CommandReader(1, step_bytes=2 * SAMPLES, state_bytes=8, background=set())
    commands: list[Command] = []
    while len(commands) < count:
        received = await asyncio.get_running_loop().sock_recv_into(end, cast(Any, reader.space()))
        commands += reader.received(received)
    return commands


async def steps_in_order() -> None:
    channel, loop = OneEngine(), asyncio.get_running_loop()
    channel.theirs.setblocking(False)
    hello = Hello(1, 8, Layout(np.dtype(np.int16), (SAMPLES,)), "").encoded()
    channel.theirs.send(hello + encode_warm(WarmedUp({1: 0.001})))
    engine = RemoteEngine(
        PLAN,
        lambda _event: None,
        channel=cast(ControlChannel, channel),
        buffer=bytearray(4_096),
        loop=loop,
        clock=time.perf_counter,
    )
    await engine.begin()
    stream = engine.open()
    for n in range(STEPS):
        engine.push(stream, np.full(SAMPLES, n, np.int16))
        if n == STEPS // 2:
            await asyncio.sleep(0)  # the first half fills the socket; the second half follows what is left of it
    _opened, *steps = await commands_of(channel.theirs, 1 + STEPS)
    assert [first_sample(step) for step in steps] == list(range(STEPS))
    engine.push(stream, np.full(SAMPLES, -7, np.int16))
    (last,) = await commands_of(channel.theirs, 1)
    assert first_sample(last) == -7
    engine.stop(0.0)
    assert await loop.sock_recv(channel.theirs, 1) == b""
    channel.theirs.close()


def first_sample(step: Command) -> int:
    assert isinstance(step, Step)
    return int(np.frombuffer(step.inputs, np.int16)[0])


def test_steps_that_the_socket_does_not_take_at_once_are_sent_when_it_has_room() -> None:
    asyncio.run(asyncio.wait_for(steps_in_order(), WAIT_S))
