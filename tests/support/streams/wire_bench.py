"""Served engines for tests: one that runs on the test's thread, and the front end's end of a socket."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from batching.batcher import Policy
from batching.events import EngineEvent
from batching.slot_model import SlotModel
from batching.wire.engine_server import EngineServer
from batching.wire.recovery import RecoveringEngine
from batching.wire.remote import RemoteConnection
from batching.wire.sockets import data_sockets
from tests.support.servers.fakes import WAIT_S, FakeClock
from tests.support.streams.driven_engine import Driven

BOUNDS: dict[str, Any] = {"policy": Policy.EAGER, "max_queued": 64, "digest": "echo"}


class DrivenEngineServer(Driven, EngineServer):
    """A served engine without its thread."""

    def __init__(self, model: SlotModel, **options: Any) -> None:
        self.fake_clock = FakeClock()
        EngineServer.__init__(self, model, **(BOUNDS | {"clock": self.fake_clock} | options))

    def attach(self, end: socket.socket) -> None:
        """Attach a socket, and take it up."""
        super().attach(end)
        self._before_commands()


class Calls(RemoteConnection):
    """A connection with the calls of an `EngineClient`: it numbers its streams, and its steps are ready now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._ids = clock, itertools.count(1)

    def open(self, *, budget_s: float = 0.1, background: bool = False) -> int:  # type: ignore[override]
        stream = next(self._ids)
        super().open(stream, budget_s, background)
        return stream

    def push(self, stream: int, inputs: Any, *, tag: object = None, reset: bool = False) -> None:  # type: ignore[override]
        super().push(stream, inputs, tag, reset, self._clock())


class FrontEnd:
    """A front end's end of a socket. Nothing moves before a call of `send` or `receive`."""

    def __init__(self, engine: EngineServer, connection: RemoteConnection | None = None) -> None:
        self.connection: Any = connection or Calls(engine._clock)
        self.socket, theirs = data_sockets()
        self.socket.setblocking(False)
        self._unsent = b""
        self.closed = False
        engine.attach(theirs)
        self._early: list[EngineEvent] = []
        if connection is None:
            self._early = self.connection.received(self.receive())  # the hello, and what came with it

    def send(self) -> None:
        """Send what the socket takes."""
        self._unsent += self.connection.take_output()
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                try:
                    self._unsent = self._unsent[self.socket.send(self._unsent) :]
                except (BrokenPipeError, ConnectionResetError):
                    self._unsent = b""

    def receive(self, count: int = 1 << 20) -> bytes:
        """Return at most `count` bytes that have arrived; `closed` is set at the end of the stream."""
        try:
            data = self.socket.recv(count)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            data = b""
        self.closed = not data
        return data

    def events(self) -> list[EngineEvent]:
        """Send, and return the events that have arrived."""
        self.send()
        found, self._early = self._early, []
        while data := self.receive():
            found += self.connection.received(data)
        return found

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def wait_until(condition: Callable[[], bool], *ends: FrontEnd, take: Callable[[FrontEnd], None]) -> None:
    """Call `take` for front ends whose sockets are ready, until the condition holds; a test fails if it never does."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        for end in ends:
            end.send()
        ready, _, _ = select.select([end.socket for end in ends if not end.closed], [], [], 0.01)
        for end in ends:
            if end.socket in ready:
                take(end)


class Recovering:
    """A `RecoveringEngine`, its events, and the socket of its present connection."""

    def __init__(self, engine: EngineServer, **options: Any) -> None:
        self.events: list[EngineEvent] = []
        self.engine = RecoveringEngine(self.events.append, clock=engine._clock, **({"max_queued": 64} | options))
        self.end: FrontEnd | None = None
        self.connect(engine)

    def connect(self, engine: EngineServer) -> None:
        """Continue in another engine."""
        self.end = FrontEnd(engine, RemoteConnection())
        self.engine.reconnect(self.end.connection)
        wait_until(lambda: self.end.connection.hello is not None, self.end, take=self.take)

    def take(self, _end: FrontEnd | None = None, count: int = 1 << 20) -> None:
        """Take bytes that have arrived; at the end of the stream the connection is lost."""
        if self.end is None:
            return
        data = self.end.receive(count)
        if data:
            self.engine.received(data)
        elif self.end.closed:
            self.lose()

    def move(self) -> bool:
        """Send everything, and take everything that has arrived; return whether there was anything."""
        moved = False
        if self.end is not None:
            moved = bool(self.end.connection._output)
            self.end.send()
            while self.end is not None and (data := self.end.receive()):
                self.engine.received(data)
                moved = True
        return moved

    def lose(self) -> None:
        """Lose the connection, and what was under way in it."""
        if self.end is not None:
            self.end.close()
            self.end = None
        self.engine.lost()
