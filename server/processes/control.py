"""Control channel between the supervisor and one child: messages, and open descriptors, over a Unix stream socket.

A frame is a header, then a message in msgpack. Descriptors travel with the first byte of their frame (`SCM_RIGHTS`,
unix(7)); the kernel never delivers them with bytes of a later frame. A request has a number, which its answer repeats.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec
import structlog

from model.errors import ModelError
from server.errors import (
    REFUSALS,
    EngineDead,
    ModelStays,
    ServerNotReady,
    SettingsError,
    TooManyOpenings,
    UnknownModel,
)

HEADER = struct.Struct("<IIBB")  # bytes of the message, number of the request, kind, descriptors
MAX_DESCRIPTORS = 16
READ_BYTES = 256 * 1024
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.control")


class Kind(IntEnum):
    """Kind of a frame."""

    TELL = 0
    REQUEST = 1
    ANSWER = 2
    ERROR = 3


class Fault(msgspec.Struct, frozen=True):
    """An error sent over the channel: class name and text. `owner`: of a `TooManyOpenings`."""

    kind: str
    text: str
    owner: str = ""

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """Return the fault of an error."""
        names = [each.__name__ for each in type(error).__mro__]
        kind = next((name for name in names if name in CROSSING), names[0])
        return cls(kind, str(error), error.owner if isinstance(error, TooManyOpenings) else "")

    def error(self) -> Exception:
        """Return the error as an instance of its class, or of its base class in `CROSSING`."""
        kind = CROSSING.get(self.kind, EngineDead)
        return TooManyOpenings(self.text, self.owner) if kind is TooManyOpenings else kind(self.text)


class ChannelClosed(ServerNotReady):
    """The other process has ended."""


CROSSING = {
    each.__name__: each for each in (*REFUSALS, UnknownModel, ModelStays, SettingsError, ModelError, EngineDead)
}
"""Errors that arrive as the class that was raised; any other arrives as `EngineDead` with its text."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message with the descriptors that travel with it, which belong to the receiver."""

    message: Any
    descriptors: Sequence[int] = ()


Answer = Callable[[Parcel], Awaitable[Parcel]]
Take = Callable[[Parcel], None]


class ControlChannel:
    """One end of the channel, on the running event loop."""

    def __init__(
        self, end: socket.socket, messages: Any, *, answer: Answer, take: Take, on_closed: Callable[[], None]
    ) -> None:
        """`messages`: union of the message types. `answer` handles requests, `take` the rest; neither may block.

        Both are called in the order of the messages; what `answer` returns is awaited later.
        """
        end.setblocking(False)
        self._socket = end
        self._loop = asyncio.get_running_loop()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._answer, self._take, self._on_closed = answer, take, on_closed
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._waiting: dict[int, asyncio.Future[Parcel]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._last = 0
        self.closed = False
        self._loop.add_reader(end.fileno(), self._read)

    # Sending

    async def request(self, message: Any) -> Any:
        """Send a request and return the answer's message. Raises: the other side's error; ChannelClosed."""
        return (await self.exchange(message)).message

    async def exchange(self, message: Any, descriptors: Sequence[int] = ()) -> Parcel:
        """Send a request with descriptors and return the answer. Raises: as `request`."""
        self._last = self._last % 0xFFFFFFFF + 1
        number, future = self._last, self._loop.create_future()
        self._waiting[number] = future
        try:
            self._put(Kind.REQUEST, number, Parcel(message, descriptors))
            answer: Parcel = await future
            return answer
        finally:
            self._waiting.pop(number, None)

    def tell(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message without an answer. After the end of the other process it is dropped."""
        with contextlib.suppress(ChannelClosed):
            self._put(Kind.TELL, 0, Parcel(message, descriptors))

    def _put(self, kind: Kind, number: int, parcel: Parcel) -> None:
        """Send as much as the socket takes; descriptors are closed here once sent. Raises: ChannelClosed."""
        if self.closed:
            _close_all(parcel.descriptors)
            raise ChannelClosed("the other process has ended")
        body = self._encode(parcel.message)
        header = HEADER.pack(len(body), number, kind, len(parcel.descriptors))
        self._unsent.append((memoryview(header + body), parcel.descriptors))
        if len(self._unsent) == 1:
            self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                data, descriptors = self._unsent[0]
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
                sent = self._socket.sendmsg([data], rights)
                _close_all(descriptors)
                if sent < len(data):
                    self._unsent[0] = data[sent:], ()
                else:
                    self._unsent.popleft()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._socket.fileno(), self._write)
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._socket.fileno())

    # Receiving

    def _read(self) -> None:
        try:
            data, rights, _, _ = self._socket.recvmsg(READ_BYTES, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, rights = b"", []
        for level, kind, given in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(given[: len(given) - len(given) % found.itemsize])
                for descriptor in found:
                    os.set_inheritable(descriptor, False)
                self._descriptors.extend(found)
        if not data:
            self.close()
            return
        self._received += data
        self._parse()

    def _parse(self) -> None:
        start = 0
        while len(self._received) - start >= HEADER.size and not self.closed:
            length, number, kind, count = HEADER.unpack_from(self._received, start)
            end = start + HEADER.size + length
            if len(self._received) < end:
                break
            body = bytes(self._received[start + HEADER.size : end])
            start = end
            self._handle(Kind(kind), number, body, [self._descriptors.popleft() for _ in range(count)])
        del self._received[:start]

    def _handle(self, kind: Kind, number: int, body: bytes, descriptors: list[int]) -> None:
        if kind is Kind.ERROR:
            self._settle(number, msgspec.msgpack.decode(body, type=Fault).error())
            return
        parcel = Parcel(self._decode(body), descriptors)
        if kind is Kind.ANSWER:
            self._settle(number, parcel)
        elif kind is Kind.REQUEST:
            task = self._loop.create_task(self._respond(number, parcel.message, self._answer(parcel)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        else:
            self._take(parcel)

    def _settle(self, number: int, outcome: Parcel | Exception) -> None:
        future = self._waiting.get(number)
        if future is None or future.done():
            if isinstance(outcome, Parcel):
                _close_all(outcome.descriptors)
        elif isinstance(outcome, Parcel):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    async def _respond(self, number: int, request: Any, answering: Awaitable[Parcel]) -> None:
        try:
            answer = await answering
        except Exception as error:  # noqa: BLE001 - every error is an answer
            fault = Fault.of(error)
            if fault.kind not in CROSSING:
                _log.exception("request failed", request=type(request).__name__)
            answer = Parcel(fault)
        kind = Kind.ERROR if isinstance(answer.message, Fault) else Kind.ANSWER
        with contextlib.suppress(ChannelClosed):
            self._put(kind, number, answer)

    def close(self) -> None:
        """Close the channel: pending requests fail, and `on_closed` is called once."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for _, descriptors in self._unsent:
            _close_all(descriptors)
        _close_all(self._descriptors)
        self._unsent.clear()
        self._descriptors.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ChannelClosed("the other process has ended"))
        for task in self._answering:
            task.cancel()
        self._on_closed()


def _close_all(descriptors: Sequence[int] | deque[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
