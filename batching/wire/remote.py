"""A front end's side of a connection to an engine in another process: calls to bytes, bytes to events.

Pure: no socket, no event loop. Its owner sends what `take_output` returns, passes received bytes to `received`, and
replaces the connection when the socket closes (`recovery.py`).

Each batch stays one event, even if several wait: the time of a step, its start and the number of rows of all front ends
belong to one batch, so merging events would falsify the statistics.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from batching.batcher import StreamId
from batching.errors import WrongFrame
from batching.events import EngineEvent, StateExported, StreamClosed, StreamFailed
from batching.wire import frames
from batching.wire.frames import COMMAND, EVENT, MAX_EVENT_BYTES, Buffer, Hello


class Frame(NamedTuple):
    """A frame of the engine that is not decoded yet."""

    kind: int
    flags: int
    stream: StreamId
    payload: memoryview


class FrameReader:
    """Reads the frames of an engine."""

    def __init__(self) -> None:
        self._rest: Buffer = b""

    def received(self, data: Buffer) -> list[Frame]:
        """Return the frames that are complete with these bytes. Raises: WrongFrame."""
        view = memoryview(b"".join((self._rest, data)) if self._rest else data)
        frames: list[Frame] = []
        at, end = 0, len(view)
        while end - at >= EVENT.size:
            kind, flags, stream, size = EVENT.unpack_from(view, at)
            if size > MAX_EVENT_BYTES:
                raise WrongFrame(f"a frame has {size} bytes, more than {MAX_EVENT_BYTES}")
            begin = at + EVENT.size
            if end - begin < size:
                break
            at = begin + size
            frames.append(Frame(kind, flags, stream, view[begin:at]))
        self._rest = bytes(view[at:]) if at < end else b""
        return frames


@dataclass(slots=True)
class _Stream:
    tags: deque[object] = field(default_factory=deque)
    """Tags of the unanswered steps, oldest first: the results of a stream arrive in order."""
    exports: deque[object] = field(default_factory=deque)
    """Tags of the pending exports, oldest first."""
    failed: bool = False


class RemoteConnection:
    """The calls of `RecoveringEngine` for streams, which it has checked, and the events that answer them.

    The caller chooses the ids of streams, of 32 bits. After the socket has closed, no further event is produced, not
    even for open streams. One thread uses it.
    """

    def __init__(self, on_output: Callable[[], None] = lambda: None) -> None:
        """`on_output` is called when there is something to send, once until the next `take_output`."""
        self._on_output = on_output
        self._hello: Hello | None = None
        self._reader = FrameReader()
        self._streams: dict[StreamId, _Stream] = {}
        self._output: list[Any] = []  # bytes, and arrays as they were pushed

    @property
    def hello(self) -> Hello | None:
        """The engine's description of itself; None until it has arrived."""
        return self._hello

    def take_output(self) -> bytes:
        """Return everything that was not sent yet; the caller sends it."""
        output, self._output = self._output, []
        return b"".join(output)

    def open(self, stream: StreamId, budget_s: float, background: bool) -> None:
        """Open a stream, whose id is not in use."""
        self._streams[stream] = _Stream()
        self._send(COMMAND.pack(frames.OPEN, background, stream, budget_s))

    def push(self, stream: StreamId, inputs: np.ndarray, tag: object, reset: bool, ready_s: float) -> None:
        """Queue one step that was ready at `ready_s`. The array is kept until it is sent."""
        known = self._streams.get(stream)
        if known is not None and not known.failed:
            known.tags.append(tag)
        row = inputs if inputs.flags.c_contiguous else inputs.tobytes()
        self._send(COMMAND.pack(frames.STEP, reset, stream, ready_s), row)

    def export(self, stream: StreamId, tag: object = None) -> None:
        """Request the state after the steps pushed so far; `StateExported` has the `tag`."""
        known = self._streams.get(stream)
        if known is not None and not known.failed:
            known.exports.append(tag)
        self._send(COMMAND.pack(frames.EXPORT, 0, stream, 0.0))

    def restore(self, stream: StreamId, state: bytes) -> None:
        """Set the stream's state, for the steps pushed from now on."""
        self._send(COMMAND.pack(frames.RESTORE, 0, stream, 0.0), state)

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

    def _send(self, header: bytes, payload: bytes | np.ndarray = b"") -> None:
        first = not self._output
        self._output += (header, payload)
        if first:
            self._on_output()
