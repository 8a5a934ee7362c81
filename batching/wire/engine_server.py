"""An engine for front ends in other processes: its model thread reads commands from sockets and writes results to them.

The id of a stream is the number of its connection followed by its 32-bit id on the wire, so ids of different front ends
never collide. The rows of a batch are grouped by connection, and each connection gets its rows in one frame.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Unpack

from batching.errors import EngineDown
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.slot_model import SlotModel
from batching.thread.model_thread import EngineOptions, ModelThread
from batching.wire import frames
from batching.wire.frames import Hello, Layout, Rows
from batching.wire.sockets import STREAM_BITS, CommandReader, SocketMail

MAX_QUEUED_BYTES = 64 << 20  # of waiting steps, over all connections: 26,000 steps of 80 ms
PERIOD_S = 0.001
"""Shortest time between the starts of two batches while `GATHERED` steps or more are expected in it: 160 streams of the
shipped model. A row in a batch of 4 costs 0.64 to 0.8 times a row in a batch of 2 (loadtest/LOG.md). In one process the
busy event loop has this effect (`Engine.acknowledge`)."""
GATHERED = 2
_WIRE_BITS = (1 << STREAM_BITS) - 1


class EngineServer(ModelThread):
    """An engine whose streams belong to the connections that `attach` adds; `RemoteConnection` is the other end.

    A connection that closes or breaks, sends what is not a frame, or does not read (`sockets.MAX_UNSENT_BYTES`), is
    closed with all its streams. When the thread ends, all connections are closed.
    """

    def __init__(
        self,
        model: SlotModel,
        *,
        digest: str = "",
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Allocate everything; `start` starts the thread. The other options are those of `ModelThread`.

        `digest`: identifies the model for front ends. `max_queued_bytes`: bound on the waiting steps of all streams. A
        connection with more than its equal share is not read until some of its steps have run: otherwise an engine that
        cannot keep up spends its time on queueing steps (measured: 35 to 55 µs a row instead of 9). It should exceed
        the most that all uploads can queue, because steps of live streams wait in the same sockets.
        """
        self._inputs = Layout(model.inputs.dtype, model.inputs.shape[1:])
        self._state_bytes, self._digest = model.state_bytes, digest
        self._max_queued_steps = max_queued_bytes // max(1, self._inputs.nbytes)
        self._background: set[int] = set()  # open background streams
        self._gathers_from = GATHERED * options.get("step_s", 0.0) / PERIOD_S or math.inf  # live streams
        self._started_s = -math.inf  # the last batch
        self._sockets = SocketMail(self._reader)
        self._warm_or_ended = threading.Event()
        super().__init__(model, self._sockets, self._send, **options)

    # Called on any thread:

    @property
    def connections(self) -> int:
        """Number of attached connections that are not closed yet."""
        return self._sockets.count

    @property
    def model(self) -> str:
        """Text that is equal for engines that may exchange states."""
        return Hello(0, self._state_bytes, self._inputs, self._digest).model

    def wait_warm(self) -> None:
        """Wait until the warm-up is over; called after `start`. Raises: EngineDown if the thread ended instead."""
        self._warm_or_ended.wait()
        if self._ended:
            raise EngineDown("the model thread ended during its warm-up") from self._failure

    def attach(self, end: socket.socket) -> None:
        """Serve a front end on this socket, which belongs to the engine from now on.

        The front end gets the hello at once, and the times of the warm-up when it is over.
        Raises: EngineDown, OSError if the socket is broken; it is closed then.
        """
        if self._ended:
            end.close()
            raise EngineDown("the model thread has ended") from self._failure
        try:
            self._sockets.attach(end, self._hello)
        except OSError:
            end.close()
            raise
        if self._ended:  # it may have ended before it could see this socket
            self._sockets.close_arrivals()

    def stop(self, timeout_s: float) -> None:
        """End the thread after its current batch and close all connections. Raises: EngineDown if it does not end."""
        super().stop(timeout_s)
        if self._thread.ident is None:  # it was never started
            self._ended = True
            self._sockets.close()

    def _hello(self, number: int) -> bytes:
        return Hello(number, self._state_bytes, self._inputs, self._digest).encoded()

    def _reader(self, number: int) -> CommandReader:
        return CommandReader(
            number, step_bytes=self._inputs.nbytes, state_bytes=self._state_bytes, background=self._background
        )

    # Called on the model thread:

    def _before_commands(self) -> None:
        self._gather()
        self._limit_reading()
        self._sockets.serve()

    def _gather(self) -> None:
        """Let steps of many streams arrive before the next batch, unless some wait already."""
        worker = self._worker
        if worker.idle and worker.streams - len(self._background) >= self._gathers_from:
            wait_s = self._started_s + PERIOD_S - self._clock()
            if wait_s > 0:
                self._sockets.rest(wait_s)

    def _limit_reading(self) -> None:
        """Read from a connection unless it has more than its share of the waiting steps."""
        connections = self._sockets.connections
        share = self._max_queued_steps // max(1, len(connections))
        if self._worker.queued > share:
            for connection in connections:
                self._sockets.pause(connection, self._worker.waiting(connection.reader.streams) > share)
        else:
            for connection in connections:
                self._sockets.pause(connection, False)

    def _send(self, event: EngineEvent) -> None:
        """Send an event to the connection of its stream."""
        match event:
            case BatchDone():
                self._send_batch(event)
            case StateExported(stream, _, state):
                self._send_of(stream, frames.event(frames.EXPORTED, stream & _WIRE_BITS, state))
            case StreamFailed(stream, error):
                self._send_of(stream, frames.encode_failed(stream & _WIRE_BITS, error))
            case StreamClosed(stream):
                self._closed(stream)
            case WarmedUp():
                self._sockets.greeting = frames.encode_warm(event)
                self._warm_or_ended.set()
                for connection in self._sockets.connections:
                    self._sockets.send(connection.number, self._sockets.greeting)
            case EngineStopped():
                self._sockets.close()
                self._warm_or_ended.set()

    def _send_of(self, stream: int, frame: bytes) -> None:
        self._sockets.send(stream >> STREAM_BITS, frame)

    def _closed(self, stream: int) -> None:
        self._background.discard(stream)
        self._sockets.forget(stream >> STREAM_BITS, stream)
        self._send_of(stream, frames.event(frames.CLOSED, stream & _WIRE_BITS))

    def _send_batch(self, batch: BatchDone) -> None:
        """Send each connection its rows. The connection of the first row leads the batch."""
        self._started_s = batch.started_s
        owners = [stream >> STREAM_BITS for stream in batch.streams]
        leader, rows = owners[0], self._rows(batch)
        if owners.count(leader) == len(owners):  # as with a single front end, and in most small batches
            self._sockets.send(leader, frames.encode_batch(batch, rows, leads=True))
            return
        for owner, mine in _by_owner(owners, rows):
            self._sockets.send(owner, frames.encode_batch(batch, mine, leads=owner == leader))

    def _rows(self, batch: BatchDone) -> Rows:
        live_wait_s: list[float] | None = None
        if batch.live_wait_s is not batch.queue_wait_s:
            waits = iter(batch.live_wait_s)
            live_wait_s = [math.nan if stream in self._background else next(waits) for stream in batch.streams]
        on_wire = [stream & _WIRE_BITS for stream in batch.streams]
        return Rows(on_wire, batch.queue_wait_s, live_wait_s, batch.outputs)


def _by_owner(owners: Sequence[int], rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Return the number of each connection with rows in a batch, and these rows in their order."""
    rows_of: dict[int, list[int]] = {}
    for row, owner in enumerate(owners):
        rows_of.setdefault(owner, []).append(row)
    for owner, mine in rows_of.items():
        yield owner, _taken(rows, mine)


def _taken(rows: Rows, taken: Sequence[int]) -> Rows:
    return Rows(
        [rows.streams[row] for row in taken],
        [rows.queue_wait_s[row] for row in taken],
        None if rows.live_wait_s is None else [rows.live_wait_s[row] for row in taken],
        rows.outputs[taken],
    )
