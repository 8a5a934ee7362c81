"""Frame readers: turn bytes in pieces of any size into commands (in the engine) or frames (in a front end)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from batching.batcher import StreamId, checked_budget
from batching.errors import WrongFrame
from batching.thread.commands import Close, Command, Export, Open, Restore, Step
from batching.wire.frames import CLOSE, COMMAND, EVENT, EXPORT, MAX_EVENT_BYTES, OPEN, RESTORE, STEP, Buffer

BUFFER_BYTES = 1 << 20  # more than a batch of steps, because one read per connection goes into the next batch
STREAM_BITS = 32  # of a stream's id on the wire; the engine puts the number of the connection before them
_new_tuple = tuple.__new__  # creates a named tuple in half the time of its own constructor


class CommandReader:
    """Reads the commands of one connection, in one buffer for its whole life.

    Receiving into new memory would cost 18 µs a step: CPython allocates all of it for each call, and the kernel gives
    it page by page. All steps that arrive together are decoded by one iterator.
    """

    def __init__(
        self,
        number: int,
        *,
        step_bytes: int,
        state_bytes: int,
        background: set[StreamId],
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """`background`: the reader adds the background streams that it opens to this set."""
        self.streams: set[StreamId] = set()
        """Streams that were opened; their `StreamClosed` removes them."""
        self._background = background
        self._base = number << STREAM_BITS
        self._state_bytes = state_bytes
        self._buffer = bytearray(max(buffer_bytes, 2 * (COMMAND.size + max(step_bytes, state_bytes))))
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._record = struct.Struct(f"{COMMAND.format}{step_bytes}s")

    def space(self) -> memoryview:
        """Return the memory for the next bytes, never empty."""
        return self._view[self._filled :]

    def received(self, count: int) -> list[Command]:
        """Return the commands that are complete with the `count` bytes written to `space`. Raises: WrongFrame."""
        commands: list[Command] = []
        at, end = 0, self._filled + count
        while end - at >= COMMAND.size:
            taken = self._steps(commands, at, end) if self._buffer[at] == STEP else self._other(commands, at, end)
            if not taken:
                break
            at += taken
        self._filled = end - at
        if at:
            self._view[: self._filled] = self._view[at:end]
        return commands

    def _steps(self, commands: list[Command], at: int, end: int) -> int:
        """Append all steps from here to the next command of another kind. Returns: their bytes."""
        size, base = self._record.size, self._base
        complete = self._view[at : end - (end - at) % size]
        taken = 0
        for kind, flag, stream, seconds, row in self._record.iter_unpack(complete):
            if kind != STEP:
                break
            commands.append(_new_tuple(Step, (base | stream, row, None, flag == 1, seconds)))
            taken += size
        return taken

    def _other(self, commands: list[Command], at: int, end: int) -> int:
        """Append the command at this place, if it is complete. Returns: its bytes."""
        kind, flag, number, seconds = COMMAND.unpack_from(self._buffer, at)
        size = COMMAND.size + (self._state_bytes if kind == RESTORE else 0)
        if end - at < size:
            return 0
        stream = self._base | number
        if kind == OPEN:
            commands.append(self._opened(stream, seconds, background=flag == 1))
        elif kind == CLOSE:
            commands.append(Close(stream))
        elif kind == EXPORT:
            commands.append(Export(stream, None))
        elif kind == RESTORE:
            commands.append(Restore(stream, bytes(self._view[at + COMMAND.size : at + size])))
        else:
            raise WrongFrame(f"no command has the kind {kind}")
        return size

    def _opened(self, stream: StreamId, budget_s: float, *, background: bool) -> Open:
        if stream in self.streams:
            raise WrongFrame(f"stream {stream} was opened twice")
        try:
            checked_budget(budget_s)
        except ValueError as error:
            raise WrongFrame(str(error)) from error
        self.streams.add(stream)
        if background:
            self._background.add(stream)
        return Open(stream, budget_s, background)


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
