"""Control channel between the supervisor and one child: messages, and open descriptors, over a Unix stream socket.

A frame is a header, then a message in msgpack. Descriptors travel with the first byte of their frame (`SCM_RIGHTS`,
unix(7)); the kernel delivers those of one frame at a time. A receiver without free descriptors gets fewer, and the flag
`MSG_CTRUNC`: the frame then counts as sent without any. A request has a number, which its answer repeats.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
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
NOT_SENT = 0xFF  # as the number of descriptors: the sender could not send them
READ_BYTES = 256 * 1024
LOST = "no file descriptor is free: raise the limit (ulimit -n)"
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
        names = [base.__name__ for base in type(error).__mro__]
        kind = next((name for name in names if name in CROSSING), names[0])
        return cls(kind, str(error), error.owner if isinstance(error, TooManyOpenings) else "")

    def error(self) -> Exception:
        """Return the error as an instance of its class, or of its base class in `CROSSING`."""
        kind = CROSSING.get(self.kind, EngineDead)
        return TooManyOpenings(self.text, self.owner) if kind is TooManyOpenings else kind(self.text)


class ChannelClosed(ServerNotReady):
    """The other process has ended."""


class DescriptorsLost(ServerNotReady):
    """A process had no free file descriptor for those that belong to a message. It can be sent again."""


CROSSING = {
    each.__name__: each
    for each in (*REFUSALS, DescriptorsLost, UnknownModel, ModelStays, SettingsError, ModelError, EngineDead)
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
        """`messages`: union of the message types; answers are values of builtin types.

        `answer` handles requests, `take` the rest; neither may block. Both are called in the order of the messages;
        what `answer` returns is awaited later. A message without an answer has no descriptors if they were lost; a
        request or an answer that lacks them fails with DescriptorsLost.
        """
        end.setblocking(False)
        self._socket = end
        self._loop = asyncio.get_running_loop()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._answer, self._take, self._on_closed = answer, take, on_closed
        self._received = bytearray()
        self._deliveries: deque[list[int]] = deque()  # descriptors of each frame that was sent with some
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
                try:
                    sent = self._socket.sendmsg([data], rights)
                except OSError as error:
                    if error.errno != errno.ETOOMANYREFS:  # too many descriptors wait to be received: unix(7)
                        raise
                    sent = self._socket.sendmsg([_without_descriptors(data)])
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
            data, rights, flags, _ = self._socket.recvmsg(READ_BYTES, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, rights, flags = b"", [], 0
        if rights or flags & socket.MSG_CTRUNC:
            self._deliveries.append(_descriptors_in(rights))
        if not data:
            self.close()
            return
        self._received += data
        self._parse()

    def _parse(self) -> None:
        """Handle the complete frames. One that fails is logged: it must not keep back those after it."""
        start = 0
        while len(self._received) - start >= HEADER.size and not self.closed:
            length, number, kind, count = HEADER.unpack_from(self._received, start)
            end = start + HEADER.size + length
            if len(self._received) < end:
                break
            body = bytes(self._received[start + HEADER.size : end])
            start = end
            descriptors = self._descriptors_of(count)
            try:
                self._handle(Kind(kind), number, Parcel(body, descriptors), lost=len(descriptors) < count)
            except Exception:  # noqa: BLE001 - a fault of one message, not of the channel
                _log.exception("a control message failed", kind=kind, bytes=length)
        del self._received[:start]

    def _descriptors_of(self, count: int) -> list[int]:
        """Return the descriptors of a frame that was sent with `count`: all, or none if some were lost."""
        if not count or count == NOT_SENT:
            return []
        descriptors = self._deliveries.popleft() if self._deliveries else []
        if len(descriptors) < count:
            _log.error("no file descriptor is free: one sent by another process is lost; raise the limit (ulimit -n)")
            _close_all(descriptors)
            return []
        return descriptors

    def _handle(self, kind: Kind, number: int, parcel: Parcel, *, lost: bool) -> None:
        """Handle a frame, whose message is still encoded. Raises: what decoding or `take` raises."""
        if kind is Kind.REQUEST:
            task = self._loop.create_task(self._respond(number, self._answering_to(parcel, lost=lost)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif kind is Kind.TELL:
            self._take(self._decoded(parcel))
        else:
            self._settle(number, self._outcome(kind, parcel, lost=lost))

    def _decoded(self, parcel: Parcel) -> Parcel:
        """Return the parcel with its message. Raises: msgspec.DecodeError, after closing the descriptors."""
        try:
            return Parcel(self._decode(parcel.message), parcel.descriptors)
        except msgspec.MsgspecError:
            _close_all(parcel.descriptors)
            raise

    def _answering_to(self, parcel: Parcel, *, lost: bool) -> Awaitable[Parcel]:
        """Call `answer`; return what it returns, or a future with the error that it raised at once."""
        failed = self._loop.create_future()
        if lost:
            failed.set_exception(DescriptorsLost(LOST))
            return failed
        try:
            return self._answer(self._decoded(parcel))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            failed.set_exception(error)
            return failed

    def _outcome(self, kind: Kind, parcel: Parcel, *, lost: bool) -> Parcel | Exception:
        """Return what a request gets: an answer, or an error."""
        try:
            if kind is Kind.ERROR:
                return msgspec.msgpack.decode(parcel.message, type=Fault).error()
            return DescriptorsLost(LOST) if lost else Parcel(msgspec.msgpack.decode(parcel.message), parcel.descriptors)
        except msgspec.MsgspecError as error:
            _close_all(parcel.descriptors)
            return EngineDead(f"the answer of another process cannot be decoded: {error}")

    def _settle(self, number: int, outcome: Parcel | Exception) -> None:
        future = self._waiting.get(number)
        if future is None or future.done():
            if isinstance(outcome, Parcel):
                _close_all(outcome.descriptors)
        elif isinstance(outcome, Parcel):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    async def _respond(self, number: int, answering: Awaitable[Parcel]) -> None:
        try:
            answer = await answering
        except Exception as error:  # noqa: BLE001 - every error is an answer
            fault = Fault.of(error)
            if fault.kind not in CROSSING:
                _log.exception("request failed")
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
        for delivered in self._deliveries:
            _close_all(delivered)
        self._unsent.clear()
        self._deliveries.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ChannelClosed("the other process has ended"))
        for task in self._answering:
            task.cancel()
        self._on_closed()


def _without_descriptors(frame: memoryview) -> bytes:
    """Return a frame whose header says that its descriptors were not sent."""
    length, number, kind, _ = HEADER.unpack_from(frame)
    return HEADER.pack(length, number, kind, NOT_SENT) + frame[HEADER.size :]


def _descriptors_in(rights: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors of received ancillary data; child processes do not inherit them."""
    descriptors = array.array("i")
    for level, kind, content in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return list(descriptors)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
