"""Listening sockets of the supervisor, and the refusal of connections that no process can serve."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

import structlog

from server.errors import AddressError

BACKLOG = 2_048  # connections that the kernel queues; uvicorn's value
AT_ONCE = 64  # connections accepted in one turn of the loop
SHORT_OF_FILES_S = 0.1  # pause if no descriptor is free
REFUSE_S = 5.0  # time limit of a connection that is refused
READ_BYTES = 64 * 1024
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.listeners")


class Listener:
    """Accepts the connections of one port and passes each to `hand_on` as a descriptor that it then owns."""

    def __init__(self, sockets: list[socket.socket], hand_on: Callable[[int], None]) -> None:
        self._sockets = sockets
        self._hand_on = hand_on
        self.port: int = sockets[0].getsockname()[1]

    def start(self) -> None:
        """Listen and accept on the running loop. Until then connections are refused, as clients expect of a starting
        server.

        Raises: AddressError.
        """
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            try:
                listener.listen(BACKLOG)
            except OSError as error:
                raise AddressError(f"port: another process listens on {self.port} since this server began") from error
            loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        """Stop listening."""
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            loop.remove_reader(listener.fileno())
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._pause(listener)
                return
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._hand_on(connection.detach())

    def _pause(self, listener: socket.socket) -> None:
        """Accept nothing for a moment: the connections stay in the kernel's queue."""
        _log.error("no file descriptor is free: connections wait; raise the limit (ulimit -n)")
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())
        loop.call_later(SHORT_OF_FILES_S, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)


async def refuse(descriptor: int, retry_after_s: int) -> None:
    """Answer a request 503 once its head has arrived, and close the connection, which belongs to this call."""
    body = b'{"err_code":"SERVICE_UNAVAILABLE","err_msg":"no process serves now: try again later"}'
    head = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {retry_after_s}\r\nContent-Length: {len(body)}\r\n"
    with contextlib.suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
        try:
            async with asyncio.timeout(REFUSE_S):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body)
                writer.write_eof()
                while await reader.read(READ_BYTES):  # closing with unread bytes would reset the connection
                    pass
        finally:
            writer.close()
