"""Layouts of the frames between a front end and an engine: encoding and decoding, without a socket.

All numbers are little endian. A stream has 32 bits here: each connection numbers its own streams. Times are seconds of
CLOCK_MONOTONIC, which all processes of a machine share (`time.perf_counter`). Arrays are copied byte for byte.

| front end to engine | 16 bytes: kind, flag, stream, seconds; then |
|---|---|
| `OPEN` | nothing; the flag: background, the seconds: budget |
| `STEP` | the row; the flag: reset, the seconds: when it was pushed |
| `EXPORT`, `CLOSE` | nothing |
| `RESTORE` | the state |

| engine to front end | 16 bytes: kind, flags, stream, length of the rest; then |
|---|---|
| `HELLO`, first of all | version, number of the connection, `state_bytes`, layout of an input row, the model's digest |
| `WARM` | seconds of a step by rows |
| `BATCH` | the fields of a `BatchDone`, except tags |
| `EXPORTED` | the state |
| `CLOSED` | nothing |
| `FAILED` | name of the error's class, line feed, text |
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batching.batcher import StreamId
from batching.errors import (
    BatchingError,
    PoolFull,
    QueueFull,
    StepFailed,
    UnknownStream,
    WrongFrame,
    WrongInput,
    WrongState,
)
from batching.events import BatchDone, WarmedUp

VERSION = 3
OPEN, STEP, EXPORT, RESTORE, CLOSE = range(1, 6)  # kinds of a front end
HELLO, WARM, BATCH, EXPORTED, CLOSED, FAILED = range(1, 7)  # kinds of an engine
LEADS, BACKGROUND_WAITS, LIVE_WAITS = 1, 2, 4  # flags of BATCH; LIVE_WAITS: they differ from the queue waits

COMMAND = struct.Struct("<BBxxId")
EVENT = struct.Struct("<BBxxIQ")
MAX_EVENT_BYTES = 1 << 28  # of a frame from the engine: a larger one is an error
LAYOUTS = 64  # cache size for encoded and decoded layouts: a model has one for its outputs
_HELLO = struct.Struct("<IIQ")  # version, number, bytes of a state
_WARM = struct.Struct("<Id")  # rows, seconds
_BATCH = struct.Struct("<IIIIdd")  # rows here, rows in all, steps, queued, started, seconds of the step
_LAYOUT = struct.Struct("<8sI")  # element type, dimensions; then the dimensions

Buffer = bytes | bytearray | memoryview
ERRORS: Mapping[str, type[BatchingError]] = {
    error.__name__: error for error in (StepFailed, PoolFull, QueueFull, WrongState, UnknownStream, WrongInput)
}
"""Errors of a stream by their name on the wire; any other error becomes a `BatchingError`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Element type and shape of one row of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of a row in bytes."""
        return int(self.dtype.itemsize) * math.prod(self.shape)

    def encoded(self) -> bytes:
        """Return the bytes of this layout."""
        return _LAYOUT.pack(self.dtype.str.encode(), len(self.shape)) + struct.pack(f"<{len(self.shape)}I", *self.shape)


@lru_cache(maxsize=LAYOUTS)
def _encoded_layout(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return Layout(dtype, shape).encoded()


def decode_layout(payload: Buffer, at: int) -> tuple[Layout, int]:
    """Return the layout at this place, and the place of the byte after it. Raises: WrongFrame."""
    name, dimensions = _LAYOUT.unpack_from(payload, at)
    at += _LAYOUT.size
    shape = struct.unpack_from(f"<{dimensions}I", payload, at)
    return _decoded_layout(name, shape), at + 4 * dimensions


@lru_cache(maxsize=LAYOUTS)
def _decoded_layout(name: bytes, shape: tuple[int, ...]) -> Layout:
    dtype = np.dtype(name.rstrip(b"\0").decode())
    if dtype.hasobject:
        raise WrongFrame(f"rows of the element type {dtype} cannot be sent")
    return Layout(dtype, shape)


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of an engine: its description."""

    number: int
    """Number of the connection; unique in an engine."""
    state_bytes: int
    inputs: Layout
    digest: str
    """Digest of the model."""

    @property
    def model(self) -> str:
        """Text that is equal for engines that may exchange states."""
        return (
            f"{self.digest or 'no digest'}, {self.inputs.dtype} {self.inputs.shape}, states of {self.state_bytes} bytes"
        )

    def encoded(self) -> bytes:
        """Return the frame."""
        fields = _HELLO.pack(VERSION, self.number, self.state_bytes)
        return event(HELLO, 0, fields + self.inputs.encoded() + self.digest.encode())


def decode_hello(payload: Buffer) -> Hello:
    """Return the engine's description of itself. Raises: WrongFrame, also for another version."""
    version, number, state_bytes = _HELLO.unpack_from(payload)
    if version != VERSION:
        raise WrongFrame(f"the engine speaks version {version} of the wire, this front end version {VERSION}")
    inputs, at = decode_layout(payload, _HELLO.size)
    return Hello(number, state_bytes, inputs, bytes(payload[at:]).decode())


def event(kind: int, stream: StreamId, payload: Buffer = b"", flags: int = 0) -> bytes:
    """Return a frame of an engine."""
    return EVENT.pack(kind, flags, stream, len(payload)) + payload


def encode_warm(warm: WarmedUp) -> bytes:
    """Return the frame of a warm-up's times."""
    return event(WARM, 0, b"".join([_WARM.pack(rows, seconds) for rows, seconds in warm.step_s.items()]))


def decode_warm(payload: Buffer) -> WarmedUp:
    """Return the times of a warm-up."""
    return WarmedUp(dict(_WARM.iter_unpack(payload)))


def encode_failed(stream: StreamId, error: Exception) -> bytes:
    """Return the frame of a failed stream."""
    return event(FAILED, stream, f"{type(error).__name__}\n{error}".encode())


def decode_failed(payload: Buffer) -> BatchingError:
    """Return the error of a failed stream."""
    name, _, text = bytes(payload).decode().partition("\n")
    return ERRORS.get(name, BatchingError)(text)


class Rows(NamedTuple):
    """The rows of a batch that belong to one connection."""

    streams: Sequence[StreamId]
    """Stream ids on the wire."""
    queue_wait_s: Sequence[float]
    live_wait_s: Sequence[float] | None
    """Per row, NaN for a background stream; None: all equal the queue waits."""
    outputs: NDArray[Any]
    """(rows, …)."""


def encode_batch(batch: BatchDone, rows: Rows, *, leads: bool) -> bytes:
    """Return the frame of one connection's rows."""
    count, in_all = len(rows.streams), len(batch.streams)
    times = rows.queue_wait_s if rows.live_wait_s is None else (*rows.queue_wait_s, *rows.live_wait_s)
    payload = b"".join(
        (
            _BATCH.pack(
                *(count, 0 if in_all == count else in_all, batch.steps, batch.queued), batch.started_s, batch.step_s
            ),
            _encoded_layout(rows.outputs.dtype, rows.outputs.shape[1:]),
            struct.pack(f"<{len(times)}d{count}I", *times, *rows.streams),
            rows.outputs.tobytes(),
        )
    )
    flags = LEADS * leads | BACKGROUND_WAITS * batch.background_waits | LIVE_WAITS * (rows.live_wait_s is not None)
    return event(BATCH, 0, payload, flags)


def decode_batch(flags: int, payload: Buffer, tags: Callable[[Sequence[StreamId]], tuple[object, ...]]) -> BatchDone:
    """Return a batch's results; `tags` returns the tags of the rows of these streams. Outputs are copied."""
    count, in_all, steps, queued, started_s, step_s = _BATCH.unpack_from(payload)
    layout, at = decode_layout(payload, _BATCH.size)

    times = 2 * count if flags & LIVE_WAITS else count
    values = struct.unpack_from(f"<{times}d{count}I", payload, at)
    at += 8 * times + 4 * count
    queue_wait_s, streams = values[:count], values[times:]
    live_wait_s = queue_wait_s
    if flags & LIVE_WAITS:
        live_wait_s = tuple([wait for wait in values[count:times] if not math.isnan(wait)])
    if len(payload) - at != count * layout.nbytes:
        raise WrongFrame(f"a batch has {len(payload) - at} bytes of outputs, its {count} rows {count * layout.nbytes}")
    # A bytearray, so that the array is aligned and can be written to, as one of this process.
    outputs: NDArray[Any] = np.ndarray((count, *layout.shape), layout.dtype, bytearray(payload[at:]))
    return BatchDone(
        streams=streams,
        tags=tags(streams),
        outputs=outputs,
        queue_wait_s=queue_wait_s,
        started_s=started_s,
        step_s=step_s,
        queued=queued,
        live_wait_s=live_wait_s,
        background_waits=bool(flags & BACKGROUND_WAITS),
        steps=steps,
        rows_in_all=in_all,
        leads=bool(flags & LEADS),
    )
