"""`RecoveringEngine`: a front end's engine, whose connection can be replaced without losing results.

It keeps the last exported state of each stream and the steps pushed since; about every `EVERY_STEPS` answers it
requests a newer state. On a new connection it opens the streams, restores their states and replays the steps, so a
session only notices a pause and gets the same bytes. Answers that were delivered before are dropped: the results of a
stream come in order, so counting them suffices. It is pure: its owner opens the connections, and reads and writes the
bytes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np

from batching.batcher import StreamId, checked_budget
from batching.errors import EngineDown, QueueFull, UnknownStream, WrongInput, WrongState
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.wire.frames import Buffer, Hello
from batching.wire.kept_stream import KeptStep, KeptStream, PendingExport, chosen_rows
from batching.wire.remote import RemoteConnection

EVERY_STEPS = 20  # 1.6 s of audio in steps of 80 ms; a state is then 0.7 kB a step of the shipped model


class RecoveringEngine:
    """An engine over connections that its owner replaces, with the calls of `Engine`; one thread uses it.

    The owner calls `reconnect` with a connection, `received` with its bytes, and `lost` when it closed; sends
    `take_output` of the connection; and calls `end` if there will be no other engine. The calls of sessions are those
    of `Engine`, with two differences: `restore` raises `WrongState` while an answer is pending, and `push` raises
    `QueueFull` once twice `max_queued` steps of a stream have no answer, which happens while the engine is away.
    """

    def __init__(
        self,
        deliver: Callable[[EngineEvent], None],
        *,
        max_queued: int,
        clock: Callable[[], float] = time.perf_counter,
        every_steps: int = EVERY_STEPS,
    ) -> None:
        """`deliver` gets every event, within `received`, `reconnect`, `end` and `stop`; it may make calls.

        `max_queued`: that of the engine. During a replay at most this many steps of a stream are sent without an
        answer.
        """
        self._deliver = deliver
        self._max_queued = max_queued
        self._clock = clock
        self._every_steps = every_steps
        self._ids = itertools.count(1)
        self._streams: dict[StreamId, KeptStream] = {}
        self._catching_up: set[StreamId] = set()  # streams that are not `caught_up` on the present connection
        self._later: list[EngineEvent] = []  # to deliver with the next bytes of a connection
        self._hello: Hello | None = None
        self._connection: RemoteConnection | None = None
        self._open = False  # whether the present connection has all streams
        self._away_since: float | None = clock()
        self._warm = False
        self._ended = False
        self._failure: BaseException | None = None

    # Called by the owner:

    @property
    def hello(self) -> Hello | None:
        """The engine's description of itself; None until the first connection has received it."""
        return self._hello

    def reconnect(self, connection: RemoteConnection) -> None:
        """Use this connection from now on; once the engine's hello arrived, all streams continue there.

        An engine with another model ends this one: `EngineStopped`.
        """
        if self._ended:
            return
        self.lost()
        self._connection = connection
        if connection.hello is not None:
            self._continue_on(connection, connection.hello)

    def received(self, data: Buffer) -> None:
        """Take bytes of the present connection. Raises: WrongFrame; close the connection then and call `lost`."""
        connection = self._connection
        if connection is None:
            return
        events = connection.received(data)
        if not self._open and connection.hello is not None and not self._ended:
            self._continue_on(connection, connection.hello)
        later, self._later = self._later, []
        for event in later:
            self._deliver(event)
        for event in events:
            if self._ended or self._connection is not connection:  # by a call within `deliver`
                return
            self._take(event)

    def lost(self) -> None:
        """Keep everything until the next connection: this one closed."""
        self._connection = None
        self._open = False
        self._catching_up.clear()
        if self._away_since is None and not self._ended:
            self._away_since = self._clock()

    def end(self, error: BaseException | None) -> None:
        """End every stream: no engine will follow. Only the first call has an effect."""
        if self._ended:
            return
        self._ended = True
        self._failure = error
        self._away_since = None
        self._connection = None
        self._open = False
        self._streams.clear()
        self._catching_up.clear()
        self._later.clear()
        self._deliver(EngineStopped(error))

    # Called by sessions:

    @property
    def alive(self) -> bool:
        """False once it has ended; true also while there is no connection."""
        return not self._ended

    @property
    def failure(self) -> BaseException | None:
        """The error that ended it; None before, and after `stop`."""
        return self._failure

    @property
    def state_bytes(self) -> int:
        """Size of an exported state in bytes. Raises: EngineDown before the first hello."""
        return self._greeted().state_bytes

    def busy_since(self) -> float | None:
        """Clock time at which the connection was lost; None while there is one.

        Only the engine's own process knows whether a connected engine is stuck.
        """
        return self._away_since

    def start(self) -> None:
        """Do nothing: the owner makes the connections."""

    def stop(self, timeout_s: float) -> None:  # noqa: ARG002 - nothing runs here that could take time
        """End every stream and drop waiting steps."""
        self.end(None)

    def acknowledge(self) -> None:
        """Do nothing: the engine waits for no front end."""

    def open(self, *, budget_s: float = 0.1, background: bool = False) -> StreamId:
        """Open a stream whose steps should be answered within `budget_s` of their due time; ids are never reused.

        Raises: EngineDown; ValueError unless `budget_s` is positive and finite.
        """
        if self._ended:
            raise EngineDown("the engine has ended") from self._failure
        record = KeptStream(checked_budget(budget_s), background, self._every_steps)
        stream = next(self._ids)
        self._streams[stream] = record
        if self._open:
            self._open_here(stream, record)
        return stream

    def push(self, stream: StreamId, inputs: np.ndarray, *, tag: object = None, reset: bool = False) -> None:
        """Queue one step, ready now. `reset`: reset the stream's state first. `tag`: returned with the answer.

        The array is kept, not copied: do not write to it afterwards.
        Raises: WrongInput; QueueFull; EngineDown before the first hello.
        """
        wanted = self._greeted().inputs
        if inputs.shape != wanted.shape or inputs.dtype != wanted.dtype:
            raise WrongInput(f"a step must be {wanted.dtype} {wanted.shape}, not {inputs.dtype} {inputs.shape}")
        record = self._find(stream)
        if record is None:
            return
        if record.pushed - record.answered >= 2 * self._max_queued:
            raise QueueFull(f"{2 * self._max_queued} steps of stream {stream} wait for an engine that does not respond")
        step = KeptStep(inputs, tag, reset, self._clock())
        at_once = self._open and record.all_sent and (record.done >= record.answered or self._has_room(record))
        record.steps.append(step)
        if at_once:
            self._push_here(stream, record, step)

    def export(self, stream: StreamId, tag: object = None) -> None:
        """Request the state after the steps pushed so far, for `StateExported`."""
        record = self._find(stream)
        if record is not None:
            record.exports.append(PendingExport(record.pushed, tag, own=False))
            self._send(stream, record)

    def restore(self, stream: StreamId, state: bytes) -> None:
        """Set the stream's state to an exported one, for the steps pushed from now on.

        Raises: WrongState for a wrong size, or while steps or exports of the stream have no answer; EngineDown before
        the first hello.
        """
        if len(state) != self.state_bytes:
            raise WrongState(f"the state has {len(state)} bytes, the model's have {self.state_bytes}")
        record = self._find(stream)
        if record is None:
            return
        if record.pushed > record.answered or not all(export.own for export in record.exports):
            raise WrongState(f"stream {stream} waits for answers; a state cannot be restored then")
        record.restore(state)
        self._send(stream, record)

    def close(self, stream: StreamId) -> None:
        """Close a stream: drop its waiting steps, free its slot and deliver `StreamClosed`."""
        if self._ended:
            return
        record = self._streams.get(stream)
        if record is None or record.closing:
            self._report_unknown(stream)
            return
        record.closing = True
        record.end()
        if self._open and self._connection is not None:
            if not record.opened:  # it failed on an earlier connection
                self._open_here(stream, record)
            self._connection.close(stream)

    # On the present connection:

    def _continue_on(self, connection: RemoteConnection, hello: Hello) -> None:
        """Continue all streams on this connection."""
        if self._hello is not None and hello.model != self._hello.model:
            self.end(EngineDown(f"the new engine has another model: {hello.model}; not {self._hello.model}"))
            return
        self._hello = hello
        self._open = True
        self._away_since = None
        closed = [stream for stream, record in self._streams.items() if record.closing]
        for stream in closed:
            del self._streams[stream]
        for stream, record in self._streams.items():
            record.reopen()
            if record.failed:
                continue
            self._open_here(stream, record)
            if record.state is not None:
                connection.restore(stream, record.state)
            self._send(stream, record)
        for event in map(StreamClosed, closed):
            self._deliver(event)

    def _open_here(self, stream: StreamId, record: KeptStream) -> None:
        assert self._connection is not None
        record.opened = True
        self._connection.open(stream, record.budget_s, record.background)

    def _push_here(self, stream: StreamId, record: KeptStream, step: KeptStep) -> None:
        assert self._connection is not None
        inputs, tag, reset, ready_s = step
        self._connection.push(stream, inputs, tag, reset, ready_s)
        record.sent += 1

    def _has_room(self, record: KeptStream) -> bool:
        """Whether the stream's queue in the engine has room for one more step, at worst."""
        return record.sent - record.done < self._max_queued

    def _send(self, stream: StreamId, record: KeptStream) -> None:
        """Send what the stream's connection does not have yet, as far as the stream's queue in the engine has room."""
        connection = self._connection
        if not self._open or connection is None or record.closing:
            return
        if record.restore_waits and record.done == record.sent:
            assert record.state is not None
            record.restore_waits = False
            record.sent = record.done = record.base
            connection.restore(stream, record.state)
        while not record.restore_waits:
            while record.asked < len(record.exports) and record.exports[record.asked].position <= record.sent:
                connection.export(stream, record.exports[record.asked])
                record.asked += 1
            if record.sent == record.pushed or not self._has_room(record):
                break
            self._push_here(stream, record, record.steps[record.sent - record.base])
        if record.caught_up:
            self._catching_up.discard(stream)
        else:
            self._catching_up.add(stream)

    # Events of the present connection:

    def _take(self, event: EngineEvent) -> None:
        match event:
            case BatchDone():
                self._take_batch(event)
            case StateExported(stream, export, state):
                self._take_state(stream, export, state)
            case StreamFailed(stream):
                self._take_failure(event, self._streams.get(stream))
            case StreamClosed(stream):
                self._streams.pop(stream, None)
                self._catching_up.discard(stream)
                self._deliver(event)
            case WarmedUp():
                if not self._warm:
                    self._warm = True
                    self._deliver(event)

    def _take_batch(self, batch: BatchDone) -> None:
        streams = self._streams
        if self._catching_up:
            # Waits while it catches up show that an engine was lost, not that there are too many streams.
            events = [row._replace(live_wait_s=()) for row in self._new_rows(batch)]
        else:
            events = [batch]
            for stream in batch.streams:
                record = streams[stream]
                record.answered += 1
                record.done += 1
        for stream in batch.streams:
            record = streams[stream]
            if record.answered >= record.export_at and record.all_sent:
                record.export_at = math.inf
                record.exports.append(PendingExport(record.pushed, None, own=True))
                self._send(stream, record)
        for event in events:
            self._deliver(event)

    def _new_rows(self, batch: BatchDone) -> list[BatchDone]:
        """Count the answers, send more to streams that are catching up, and return the rows that are new."""
        record = [self._streams[stream] for stream in batch.streams]
        new = [stream.take_answer() for stream in record]
        for stream in self._catching_up.intersection(batch.streams):
            self._send(stream, self._streams[stream])
        return [batch] if all(new) else chosen_rows(batch, new, [not stream.background for stream in record])

    def _take_state(self, stream: StreamId, export: object, state: bytes) -> None:
        assert isinstance(export, PendingExport)
        record = self._streams[stream]
        record.exports.popleft()
        record.asked -= 1
        if export.current and not record.closing:
            record.adopt(export.position, state)
        if not export.own:
            self._deliver(StateExported(stream, export.tag, state))

    def _take_failure(self, event: StreamFailed, record: KeptStream | None) -> None:
        if record is not None:
            if record.failed:  # reported on an earlier connection
                return
            record.failed = True
            record.end()
            record.exports.clear()
            record.asked = 0
            self._catching_up.discard(event.stream)
        self._deliver(event)

    # Streams:

    def _find(self, stream: StreamId) -> KeptStream | None:
        """Return the stream if it accepts calls; report one that is not open."""
        record = self._streams.get(stream)
        if self._ended or (record is not None and record.failed):
            return None
        if record is None or record.closing:
            self._report_unknown(stream)
            return None
        return record

    def _report_unknown(self, stream: StreamId) -> None:
        self._later.append(StreamFailed(stream, UnknownStream(f"stream {stream} is not open")))

    def _greeted(self) -> Hello:
        if self._hello is None:
            raise EngineDown("no engine is connected yet: wait for its hello")
        return self._hello
