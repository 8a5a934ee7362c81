"""Recordings that are decoded in processes of their own, as `fork_server` forks them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import numpy as np
import structlog

from server import errors
from server.audio.formats import AudioForm
from server.audio.pcm import PCM
from server.audio.recordings.fork_server import LENGTH, Answer, Begin, Block, Ended, Failed, Forked, Opened, packed
from server.errors import BadAudio, ServerNotReady

FORK_S = 10.0  # until the answer of a new child; the first waits for the imports, 0.3 s
NO_PROCESS = "no process for decoding could be started; send the recording again"
_REFUSALS = {kind.__name__: kind for kind in (errors.BadAudio, errors.BadParameter, errors.TooLarge)}
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.uploads")
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class ForkServer:
    """The process that forks. It is started when it is first needed, and again if it has ended."""

    def __init__(self, *program: str) -> None:
        """`program`: other arguments of Python that run it."""
        self._program = program or ("-m", "server.audio.recordings.fork_server")
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> socket.socket:
        """Return the socket of a new child. Raises: OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._running(), [b"f"], [theirs.fileno()])
            except (BrokenPipeError, ConnectionResetError):  # it was killed
                self.stop()
                socket.send_fds(self._running(), [b"f"], [theirs.fileno()])
        ours.setblocking(False)
        return ours

    def stop(self) -> None:
        """End the process; its children finish."""
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._process = self._control = None

    def _running(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, *self._program, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process with threads must not fork
                )
            ours.setblocking(False)
            self._control = ours
        return self._control


class RemoteRecording:
    """A recording in another process, as `Recording`."""

    def __init__(self, forks: ForkServer, connection: socket.socket) -> None:
        self._forks, self._connection = forks, connection
        self._pid: int | None = None
        self._killed = False
        self.channels = 0
        self.warnings: list[str] = []  # complete at the end

    async def open(self, body: bytes, form: AudioForm, *, rate: int, max_s: float) -> None:
        """Open the body; `rate` is the output rate in Hz. Raises: BadAudio, BadParameter, TooLarge, ServerNotReady."""
        try:
            async with asyncio.timeout(FORK_S):
                forked = await self._answer()
        except (TimeoutError, EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._forks.stop()
            raise ServerNotReady(NO_PROCESS) from error
        assert isinstance(forked, Forked)
        self._pid = forked.pid
        if self._killed:
            self.kill()
        begin = packed(Begin(form, rate, max_s, len(body)))
        loop = asyncio.get_running_loop()
        with suppress(BrokenPipeError, ConnectionResetError):  # the next answer tells
            await loop.sock_sendall(self._connection, begin)
            await loop.sock_sendall(self._connection, memoryview(body))
        opened = await self._result()
        assert isinstance(opened, Opened)
        self.channels = opened.channels
        await self._ask()

    async def next_block(self) -> PCM | None:
        """Return the next samples, (S, C) int16, or None at the end. Raises: BadAudio, TooLarge."""
        result = await self._result()
        if isinstance(result, Block):
            await self._ask()  # it is decoded while this one is recognized
            return np.frombuffer(result.samples, np.int16).reshape(-1, self.channels)
        assert isinstance(result, Ended)
        self.warnings = result.warnings
        return None

    def kill(self) -> None:
        """End the process, also one that has not said its number yet; what is awaited fails with BadAudio."""
        self._killed = True
        pid, self._pid = self._pid, None
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _ask(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.get_running_loop().sock_sendall(self._connection, b"n")

    async def _result(self) -> Answer:
        try:
            answer = await self._answer()
        except (EOFError, ConnectionResetError) as error:
            if self._pid is not None:
                _log.warning("decoder of an upload crashed, or took too much time", pid=self._pid)
            self._pid = None
            raise BadAudio("the recording cannot be decoded: its decoder crashed, or took too much time") from error
        if not isinstance(answer, Failed):
            return answer
        refusal = _REFUSALS.get(answer.error)
        raise RuntimeError(answer.text) if refusal is None else refusal(answer.text)

    async def _answer(self) -> Answer:
        (size,) = LENGTH.unpack(await self._received(LENGTH.size))
        return _ANSWERS.decode(await self._received(size))

    async def _received(self, size: int) -> bytearray:
        """Receive this many bytes. Raises: EOFError."""
        data, at, loop = bytearray(size), 0, asyncio.get_running_loop()
        while at < size:
            count = await loop.sock_recv_into(self._connection, memoryview(data)[at:])
            if not count:
                raise EOFError
            at += count
        return data


@asynccontextmanager
async def forked_recording(forks: ForkServer) -> AsyncIterator[RemoteRecording]:
    """Yield a recording to open; its process is killed at the end. Raises: ServerNotReady."""
    try:
        connection = forks.fork()
    except OSError as error:
        raise ServerNotReady(NO_PROCESS) from error
    with connection:
        recording = RemoteRecording(forks, connection)
        try:
            yield recording
        finally:
            recording.kill()
