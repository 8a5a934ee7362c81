"""A front end's access to engines of the engine host: sockets, reconnection, one send per iteration of the event loop.

`batching.wire` defines and interprets the messages; this module handles sockets and the event loop. A closed socket
means that the host has ended or was replaced: the supervisor supplies a new connection, on which every stream
continues.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog

from batching.errors import EngineDown, WrongFrame
from batching.events import EngineEvent, WarmedUp
from batching.thread.step_token import StepToken
from batching.wire.recovery import RecoveringEngine
from batching.wire.remote import RemoteConnection
from server.errors import Refused, ServerError
from server.models.engine_source import EnginePlan
from server.processes.control import ControlChannel, DescriptorsLost
from server.processes.messages import Connect
from server.recognition.engines import Deliver, MakeEngine

READ_BYTES = 256 * 1024
AGAIN_S = 0.05  # wait after a connection that failed before it was warm
ATTEMPTS = 100  # such connections in a row, after which the engine counts as lost
WARM_WITHIN_S = 600.0  # a large model takes minutes to load from a network volume
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.remote_engine")


class RemoteEngines:
    """Implements `EngineSource`: engines in the engine host, to which the supervisor connects this process."""

    gpu: str | None = None

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._buffer = bytearray(READ_BYTES)  # shared by all engines: received data is copied or decoded at once
        self._engines: list[RemoteEngine] = []

    def maker(self, plan: EnginePlan, step_token: StepToken | None, clock: Callable[[], float]) -> MakeEngine:  # noqa: ARG002 - the host has its own token
        """Return a function that connects to the engine of this plan and waits until it is warm."""

        def make(deliver: Deliver, loop: asyncio.AbstractEventLoop) -> RemoteEngine:
            engine = RemoteEngine(plan, deliver, channel=self._channel, buffer=self._buffer, loop=loop, clock=clock)
            self._engines = [earlier for earlier in self._engines if earlier.alive]
            self._engines.append(engine)
            asyncio.run_coroutine_threadsafe(engine.begin(), loop).result(WARM_WITHIN_S)
            return engine

        return make

    def reconnect(self) -> None:
        """Move all streams to the engine host that serves now."""
        for engine in self._engines:
            engine.disconnect()

    def warn_of_dependent_rows(self, reproducible: bool) -> None:
        """Do nothing: the engine host has the weights, and warns."""


class RemoteEngine(RecoveringEngine):
    """One engine of the host. Used only on the event loop, but may be created on any thread."""

    def __init__(
        self,
        plan: EnginePlan,
        deliver: Deliver,
        *,
        channel: ControlChannel,
        buffer: bytearray,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        """`buffer`: receive buffer; several engines may share it."""
        super().__init__(self._delivered, max_queued=plan.max_queued, clock=clock)
        self._name = plan.name
        self._on_event = deliver
        self._channel, self._loop = channel, loop
        self._buffer = memoryview(buffer)
        self._socket: socket.socket | None = None
        self._outgoing: RemoteConnection | None = None
        self._unsent = memoryview(b"")
        self._writing = False  # whether the loop calls `_flush` once the socket is writable
        self._first: asyncio.Future[WarmedUp] = loop.create_future()
        self._connecting: asyncio.Task[None] | None = None
        self._attempts = 0

    async def begin(self) -> None:
        """Connect, and wait until the engine is warm. Raises: EngineDown."""
        self._connect_soon()
        await asyncio.shield(self._first)

    def stop(self, timeout_s: float) -> None:
        """End every stream and close the connection. May be called on any thread."""
        self._loop.call_soon_threadsafe(self._stop, timeout_s)

    def _stop(self, timeout_s: float) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self._close()
        super().stop(timeout_s)

    def _delivered(self, event: EngineEvent) -> None:
        if isinstance(event, WarmedUp) and not self._first.done():
            self._first.set_result(event)
        self._on_event(event)

    # Connection

    def disconnect(self) -> None:
        """Close the present connection and connect again."""
        if self._socket is not None:
            self._closed()

    def _connect_soon(self) -> None:
        if self._connecting is None or self._connecting.done():
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        if self._attempts:
            await asyncio.sleep(AGAIN_S)
        self._attempts += 1
        if self._attempts > ATTEMPTS:
            self._give_up("the engine closes every connection")
            return
        try:
            answer = await self._channel.exchange(Connect(self._name))
        except DescriptorsLost:  # for as long as connections take all descriptors
            self._attempts -= 1
            self._loop.call_later(AGAIN_S, self._connect_soon)
            return
        except (ServerError, Refused) as error:
            self._give_up(str(error))
            return
        self._use(socket.socket(fileno=answer.descriptors[0]))

    def _give_up(self, why: str) -> None:
        error = EngineDown(why)
        if not self._first.done():
            self._first.set_exception(error)
        self.end(error)

    def _use(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._unsent, self._writing = memoryview(b""), False
        self._outgoing = RemoteConnection(self._flush_soon)
        self._loop.add_reader(end.fileno(), self._read)
        self.reconnect(self._outgoing)

    def _closed(self) -> None:
        """Handle the connection's end: connect again, unless this engine has ended."""
        self._close()
        self.lost()
        if self.alive:
            self._connect_soon()

    def _close(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
        self._socket = self._outgoing = None

    # Bytes

    def _read(self) -> None:
        assert self._socket is not None
        try:
            count = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self._closed()
            return
        try:
            self.received(self._buffer[:count])
        except WrongFrame:
            _log.exception("the engine sent what is not a frame", engine=self._name)
            self._closed()
            return
        if self.busy_since() is None:  # the engine's hello has arrived
            self._attempts = 0

    def _flush_soon(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the streams' requests as far as the socket accepts them, and the rest when it is writable again."""
        if self._socket is None or self._outgoing is None:
            return
        try:
            while True:
                self._unsent = self._unsent or memoryview(self._outgoing.take_output())
                if not self._unsent:
                    break
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._flush)
            return
        except OSError:
            self._closed()
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket.fileno())
