"""A front end's side of a connection to an engine in another process: calls to bytes, bytes to events.

Pure: no socket, no event loop. Its owner sends what `take_output` returns, passes received bytes to `received`, and
replaces the connection when the socket closes (`recovery.py`).

Each batch stays one event, even if several wait: the time of a step, its start and the number of rows of all front ends
belong to one batch, so merging events would falsify the statistics.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batching.batcher import StreamId, checked_budget
from batching.errors import EngineDown, QueueFull, WrongFrame, WrongInput, WrongState
from batching.events import EngineEvent, StateExported, StreamClosed, StreamFailed
from batching.wire import frames
from batching.wire.frames import COMMAND, Buffer, Hello
from batching.wire.readers import Frame, FrameReader

MAX_OUTPUT_BYTES = 64 << 20  # limit on unsent output: reached only if the engine does not read


@dataclass(slots=True)
class _Stream:
    tags: deque[object] = field(default_factory=deque)
    """Tags of the unanswered steps, oldest first: the results of a stream arrive in order."""
    exports: deque[object] = field(default_factory=deque)
    """Tags of the pending exports, oldest first."""
    failed: bool = False


class RemoteConnection:
    """The calls of an `EngineClient` for streams, and the events that answer them; one thread uses it.

    Stream ids may be chosen by the caller and have 32 bits on the wire. After the socket has closed, no further event
    is produced, not even for open streams.
    """

    def __init__(
        self,
        *,
        on_output: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`on_output` is called when there is something to send, once until the next `take_output`."""
        self._on_output = on_output
        self._clock = clock
        self._hello: Hello | None = None
        self._reader = FrameReader()
        self._ids = itertools.count(1)
        self._streams: dict[StreamId, _Stream] = {}
        self._output: list[Any] = []  # bytes, and arrays as they were pushed
        self._output_bytes = 0

    @property
    def hello(self) -> Hello | None:
        """The engine's description of itself; None until it has arrived."""
        return self._hello

    @property
    def output_bytes(self) -> int:
        """Number of bytes to send."""
        return self._output_bytes

    def take_output(self) -> bytes:
        """Return everything that was not sent yet; the caller sends it."""
        output, self._output, self._output_bytes = self._output, [], 0
        return b"".join(output)

    def open(self, *, budget_s: float = 0.1, background: bool = False, stream: StreamId | None = None) -> StreamId:
        """Open a stream; `stream`, if given, is its id and must not be in use.

        Raises: ValueError for a budget that is not positive and finite; QueueFull if the engine does not read.
        """
        checked_budget(budget_s)
        if stream is None:
            self._check_room()
            stream = next(self._ids)
        self._streams[stream] = _Stream()
        self._send(COMMAND.pack(frames.OPEN, background, stream, budget_s))
        return stream

    def push(self, stream: StreamId, inputs: np.ndarray, *, tag: object = None, reset: bool = False) -> None:
        """Queue one step, ready now. The array is kept until it is sent.

        Raises: EngineDown before the engine's hello; WrongInput; QueueFull if the engine does not read.
        """
        wanted = self._greeted().inputs
        if inputs.shape != wanted.shape or inputs.dtype != wanted.dtype:
            raise WrongInput(f"a step must be {wanted.dtype} {wanted.shape}, not {inputs.dtype} {inputs.shape}")
        self._check_room()
        self.push_checked(stream, inputs, tag, reset, self._clock())

    def push_checked(self, stream: StreamId, inputs: np.ndarray, tag: object, reset: bool, ready_s: float) -> None:
        """Queue one step that was ready at `ready_s`, whose shape was checked; also while the engine does not read."""
        known = self._streams.get(stream)
        if known is not None and not known.failed:
            known.tags.append(tag)
        row = inputs if inputs.flags.c_contiguous else inputs.tobytes()
        self._send(COMMAND.pack(frames.STEP, reset, stream, ready_s), row, inputs.nbytes)

    def export(self, stream: StreamId, tag: object = None) -> None:
        """Request the state after the steps pushed so far; `StateExported` has the `tag`."""
        known = self._streams.get(stream)
        if known is not None and not known.failed:
            known.exports.append(tag)
        self._send(COMMAND.pack(frames.EXPORT, 0, stream, 0.0))

    def restore(self, stream: StreamId, state: bytes) -> None:
        """Set the stream's state, for the steps pushed from now on. Raises: EngineDown, WrongState for a wrong size."""
        wanted = self._greeted().state_bytes
        if len(state) != wanted:
            raise WrongState(f"the state has {len(state)} bytes, the model's have {wanted}")
        self._send(COMMAND.pack(frames.RESTORE, 0, stream, 0.0), state, len(state))

    def close(self, stream: StreamId) -> None:
        """Close a stream: drop its waiting steps, free its slot, and get `StreamClosed`."""
        self._send(COMMAND.pack(frames.CLOSE, 0, stream, 0.0))

    def received(self, data: Buffer) -> list[EngineEvent]:
        """Return the events that are complete with these bytes.

        Raises: WrongFrame; close the connection then.
        """
        events: list[EngineEvent] = []
        for frame in self._reader.received(data):
            try:
                event = self._event(frame)
            except (struct.error, TypeError, ValueError, IndexError, KeyError) as error:
                raise WrongFrame(f"a frame of kind {frame.kind} cannot be decoded: {error!r}") from error
            if event is not None:
                events.append(event)
        return events

    def _event(self, frame: Frame) -> EngineEvent | None:
        kind, flags, stream, payload = frame
        event: EngineEvent | None = None
        if kind == frames.BATCH:
            event = frames.decode_batch(flags, payload, self._tags)
        elif kind == frames.EXPORTED:
            event = StateExported(stream, self._streams[stream].exports.popleft(), bytes(payload))
        elif kind == frames.CLOSED:
            self._streams.pop(stream, None)
            event = StreamClosed(stream)
        elif kind == frames.FAILED:
            event = self._failed(stream, frames.decode_failed(payload))
        elif kind == frames.WARM:
            event = frames.decode_warm(payload)
        elif kind == frames.HELLO:
            self._hello = frames.decode_hello(payload)
        else:
            raise WrongFrame(f"no frame has the kind {kind}")
        return event

    def _tags(self, streams: Sequence[StreamId]) -> tuple[object, ...]:
        """Return the tags of the next step of each of these streams; a stream may be named several times."""
        known = self._streams
        return tuple([known[stream].tags.popleft() for stream in streams])

    def _failed(self, stream: StreamId, error: Exception) -> StreamFailed:
        known = self._streams.get(stream)
        if known is not None:
            known.failed = True
            known.tags.clear()
            known.exports.clear()
        return StreamFailed(stream, error)

    def _greeted(self) -> Hello:
        if self._hello is None:
            raise EngineDown("the engine has not described its inputs yet: wait for its hello")
        return self._hello

    def _check_room(self) -> None:
        if self._output_bytes > MAX_OUTPUT_BYTES:
            raise QueueFull(f"{self._output_bytes} bytes wait for the engine, which does not read")

    def _send(self, header: bytes, payload: bytes | np.ndarray = b"", payload_bytes: int = 0) -> None:
        first = not self._output
        self._output += (header, payload)
        self._output_bytes += COMMAND.size + payload_bytes
        if first:
            self._on_output()
