"""The sockets of a served engine: the model thread itself reads commands from them and writes frames to them.

No other thread of the process competes for the interpreter lock. Nothing here blocks, except the sleep of a thread
without work: a front end that does not read loses its connection once `MAX_UNSENT_BYTES` wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

from batching.batcher import StreamId, checked_budget
from batching.errors import WrongFrame
from batching.thread.commands import Close, Command, Export, Open, Restore, Step
from batching.wire.frames import CLOSE, COMMAND, EXPORT, OPEN, RESTORE, STEP, Buffer

MAX_UNSENT_BYTES = 16 << 20
SOCKET_BUFFER_BYTES = 4 << 20  # requested size; the kernel grants at most net.core.wmem_max
MAX_PARTS = 64  # most buffers per send
ARRIVALS_PER_TURN = 1_024  # wake-ups consumed by one read
BUFFER_BYTES = 1 << 20  # more than a batch of steps, because one read per connection goes into the next batch
STREAM_BITS = 32  # of a stream's id on the wire; the engine puts the number of the connection before them
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_new_tuple = tuple.__new__  # creates a named tuple in half the time of its own constructor


def data_sockets() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection between a front end and an engine, with large buffers."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return ends


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


class Connection:
    """One front end: its socket, its reader, and the frames that its socket did not take yet."""

    def __init__(self, end: socket.socket, number: int, reader: CommandReader) -> None:
        self.socket, self.number, self.reader = end, number, reader
        self.unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self.paused = False
        """Whether its commands are left in the socket for now."""
        self.watched = 0
        """Events that the selector watches for."""

    def append(self, part: Buffer) -> None:
        """Keep a frame, or the rest of one, for `send`."""
        self.unsent.append(memoryview(part))
        self.unsent_bytes += len(part)

    def send(self) -> None:
        """Send as much as the socket takes now. Raises: OSError if the connection is broken."""
        while self.unsent:
            parts = list(itertools.islice(self.unsent, MAX_PARTS))
            try:
                sent = self.socket.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                return
            self.unsent_bytes -= sent
            self._remove(sent)

    def _remove(self, sent: int) -> None:
        while sent:
            part = self.unsent.popleft()
            if len(part) > sent:
                self.unsent.appendleft(part[sent:])
                return
            sent -= len(part)


class SocketMail:
    """Queue of commands that the sockets of front ends fill; `Mail` of a `ModelThread`.

    `put`, `attach` and `close_arrivals` are called on any thread, the rest on the model thread alone.
    """

    def __init__(self, reader: Callable[[int], CommandReader]) -> None:
        """`reader`: makes the reader of the connection with this number."""
        self.commands: deque[Command] = deque()
        self.greeting = b""
        """Sent to each connection when the model thread adds it."""
        self._reader = reader
        self._connections: dict[int, Connection] = {}
        self._arrivals: deque[Connection] = deque()
        self._numbers = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, READ, None)

    # Called on any thread:

    def put(self, command: Command) -> None:
        """Append a command and wake the model thread."""
        self.commands.append(command)
        self._wake()

    def attach(self, end: socket.socket, hello: Callable[[int], bytes]) -> None:
        """Add a connection, which belongs to this object from now on, and send what `hello` returns for its number.

        Raises: OSError if the socket is broken.
        """
        number = next(self._numbers)
        end.setblocking(False)
        end.sendall(hello(number))  # a few hundred bytes into an empty socket
        self._arrivals.append(Connection(end, number, self._reader(number)))
        self._wake()

    def close_arrivals(self) -> None:
        """Close the connections that the model thread has not added; call it once the thread has ended."""
        while self._arrivals:
            with contextlib.suppress(IndexError):  # both threads may do so
                self._arrivals.popleft().socket.close()

    @property
    def count(self) -> int:
        """Number of connections."""
        return len(self._connections) + len(self._arrivals)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full, so that it wakes up anyway; or closed, because the thread has ended
            self._waker.send(b"\0")

    # Called on the model thread:

    @property
    def connections(self) -> list[Connection]:
        """The connections that are open now."""
        return list(self._connections.values())

    def sleep(self, seconds: float | None) -> None:
        """Wait for a command or a socket, at most `seconds` (None = no limit), and serve the sockets."""
        self._serve(self._selector.select(seconds))

    def rest(self, seconds: float) -> None:
        """Sleep for this time without serving the sockets."""
        time.sleep(seconds)

    def serve(self) -> None:
        """Read from and write to the sockets that are ready."""
        self._serve(self._selector.select(0.0))

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        for key, events in ready:
            connection: Connection | None = key.data
            if connection is None:
                self._add_arrivals()
                continue
            if events & WRITE and connection.number in self._connections:
                self._flush(connection)
            if events & READ and connection.number in self._connections:
                self._read(connection)

    def send(self, number: int, frame: bytes) -> None:
        """Send a frame to a connection, now or when its socket takes it; nothing if the connection is closed."""
        connection = self._connections.get(number)
        if connection is None:
            return
        if connection.unsent:
            connection.append(frame)
            if connection.unsent_bytes > MAX_UNSENT_BYTES:
                self.drop(connection)
            return
        try:
            sent = connection.socket.send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.drop(connection)
            return
        if sent < len(frame):
            connection.append(memoryview(frame)[sent:])
            self._flush(connection)

    def pause(self, connection: Connection, paused: bool) -> None:
        """Leave the commands of a connection in its socket, or read them again."""
        if connection.paused is not paused:
            connection.paused = paused
            self._watch(connection)

    def forget(self, number: int, stream: StreamId) -> None:
        """Forget a closed stream of a connection."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.reader.streams.discard(stream)

    def drop(self, connection: Connection) -> None:
        """Close a connection and all its streams."""
        if self._connections.pop(connection.number, None) is None:
            return
        if connection.watched:
            self._selector.unregister(connection.socket)
        connection.socket.close()
        self.commands.extend([Close(stream) for stream in connection.reader.streams])

    def close(self) -> None:
        """Close everything."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.send()
            self.drop(connection)
        self.commands.clear()
        self.close_arrivals()
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def _add_arrivals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(ARRIVALS_PER_TURN)
        while self._arrivals:
            connection = self._arrivals[0]
            self._connections[connection.number] = connection  # before it leaves the arrivals, so that `count` has it
            self._arrivals.popleft()
            self._watch(connection)
            if self.greeting:
                self.send(connection.number, self.greeting)

    def _read(self, connection: Connection) -> None:
        try:
            count = connection.socket.recv_into(connection.reader.space())
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self.drop(connection)
            return
        try:
            self.commands.extend(connection.reader.received(count))
        except WrongFrame:  # as a front end that died
            self.drop(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            connection.send()
        except OSError:
            self.drop(connection)
            return
        if connection.unsent_bytes > MAX_UNSENT_BYTES:
            self.drop(connection)
        else:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Let the selector watch for what the connection waits for."""
        events = (0 if connection.paused else READ) | (WRITE if connection.unsent else 0)
        if events == connection.watched:
            return
        if not events:
            self._selector.unregister(connection.socket)
        elif connection.watched:
            self._selector.modify(connection.socket, events, connection)
        else:
            self._selector.register(connection.socket, events, connection)
        connection.watched = events
