"""One live connection to `/v1/listen`: sends PCM and control messages, receives typed messages.

Owns the socket.

    async with connect("ws://127.0.0.1:8080", interim_results=True) as client:
        await client.send(pcm)
        await client.close_stream()
        async for message in client:
            ...
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConcurrencyError, ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from tutti_asr_client.address import QueryValue, is_loopback, listen_url
from tutti_asr_client.errors import NORMAL_CLOSE, ClosedAbnormally, Refused, Unreachable
from tutti_asr_client.messages import Message, decode

ABNORMAL_CLOSE = 1006
"""Code for a connection that ended without a close frame (RFC 6455 §7.4.1)."""

CLOSE_WITHIN_S = 2.0
"""Time to wait for the server's answer to a close before the connection is aborted."""


class Controls(ABC):
    """Control messages of a stream, whatever number of connections it has."""

    async def finalize(self, channel: int | None = None) -> None:
        """Request a final of all audio sent so far; the stream stays open."""
        await self._control("Finalize", channel)

    async def configure(self, keyterms: Sequence[str]) -> None:
        """Replace the key terms for later audio; answered by `ConfigureSuccess` or `ConfigureFailure`."""
        await self._control("Configure", keyterms=list(keyterms))

    async def add_context(self, said: str) -> None:
        """Favor the rare words of another speaker's text for 30 s of audio.

        Answered by `ContextSuccess` or `ContextFailure`.
        """
        await self._control("Context", text=said)

    async def rewind(self, seconds: float, keyterms: Sequence[str] = (), channel: int | None = None) -> None:
        """Decode the finals of the last seconds again, with further key terms. For a stream with `rewind` in its query.

        Each channel answers once, by `Results` with `correction`; a refusal is one `RewindFailure`.
        """
        await self._control("Rewind", channel, seconds=seconds, keyterms=list(keyterms))

    @abstractmethod
    async def _control(self, kind: str, channel: int | None = None, **fields: object) -> None:
        """Send a message, to one channel or all."""


class ListenClient(Controls):
    """An open stream; iterating over it yields the server's messages until a normal close."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @property
    def request_id(self) -> str | None:
        """The server's id of this stream (`dg-request-id`)."""
        response = self._connection.response
        return None if response is None else response.headers.get("dg-request-id")

    async def send(self, pcm: bytes | NDArray[np.int16]) -> None:
        """Send little-endian int16 samples, any number of them.

        Raises:
            ClosedAbnormally: the server has ended the stream.
        """
        await self.send_frame(pcm if isinstance(pcm, bytes) else pcm.astype("<i2").tobytes())

    async def keep_alive(self) -> None:
        """Reset the server's idle timer without sending audio."""
        await self._control("KeepAlive")

    async def close_stream(self) -> None:
        """End the audio; answered by the last final, `Metadata` and a normal close."""
        await self._control("CloseStream")

    def abort(self) -> None:
        """Drop the connection without a close; the iteration ends with `ClosedAbnormally`."""
        self._connection.transport.abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message; unknown types are skipped.

        Raises:
            ClosedAbnormally: the connection ended with a code other than 1000.
            BadMessage: a message is invalid.
        """
        while True:
            try:
                frame = await self._connection.recv(decode=False)
            except ConnectionClosed as error:
                closed = _closed(error)
                if closed.code == NORMAL_CLOSE:
                    raise StopAsyncIteration from None
                raise closed from error
            message = decode(frame)
            if message is not None:
                return message

    async def _control(self, kind: str, channel: int | None = None, **fields: object) -> None:
        of_channel = {} if channel is None else {"channel": channel}
        await self.send_frame(msgspec.json.encode({"type": kind, **fields, **of_channel}).decode())

    async def send_frame(self, frame: str | bytes) -> None:
        """Send a frame unchanged; wait while the connection's buffer is full.

        Raises:
            ClosedAbnormally: the server has ended the stream.
        """
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            raise _closed(error) from error


@contextlib.asynccontextmanager
async def connect(
    url: str,
    *,
    api_key: str | None = None,
    sample_rate: int = 16000,
    interim_results: bool = True,
    open_timeout_s: float = 10.0,
    dead_after_s: float = 40.0,
    close_timeout_s: float = CLOSE_WITHIN_S,
    **query: QueryValue,
) -> AsyncIterator[ListenClient]:
    """Open a stream of 16-bit PCM; further keyword arguments are added to the query.

    A server that does not answer a ping within `dead_after_s` counts as lost. On exit, its close frame is awaited for
    at most `close_timeout_s`.

    Raises:
        BadUrl: `url` is invalid.
        Unreachable: nothing answered within `open_timeout_s`.
        Refused: the server answered with an HTTP error.
    """
    settings: dict[str, QueryValue] = {
        "encoding": "linear16",
        "sample_rate": sample_rate,
        "interim_results": interim_results,
        **query,
    }
    address = listen_url(url, settings)
    opening = connect_websocket(
        address,
        additional_headers=None if api_key is None else {"Authorization": f"Token {api_key}"},
        compression=None,  # PCM does not compress
        open_timeout=open_timeout_s,
        ping_interval=dead_after_s / 2,
        ping_timeout=dead_after_s / 2,
        close_timeout=close_timeout_s,
        proxy=None if is_loopback(address) else True,
    )
    try:
        connection = await opening
    except InvalidStatus as error:
        raise refusal(error) from error
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError, UnicodeError) as error:
        raise Unreachable(url, str(error) or type(error).__name__) from error
    try:
        yield ListenClient(connection)
    finally:
        await _close(connection)


async def _close(connection: ClientConnection) -> None:
    """Close, and discard the messages that arrive before the answer to the close."""
    closing = asyncio.create_task(connection.close())
    with contextlib.suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(CLOSE_WITHIN_S):
            try:
                while True:
                    await connection.recv()
            except ConcurrencyError:  # another task iterates and receives the messages
                await asyncio.shield(closing)
    connection.transport.abort()
    await closing


class _Denial(msgspec.Struct):
    err_msg: str = ""


def refusal(error: InvalidStatus) -> Refused:
    """Convert a refused handshake to an error."""
    response = error.response
    return refused(response.status_code, response.headers, bytes(response.body or b""), response.reason_phrase)


def refused(status: int, headers: Mapping[str, str], body: bytes, reason: str) -> Refused:
    """Return the error for an HTTP answer; its message is `dg-error`, else the body's `err_msg`, else the reason."""
    message = headers.get("dg-error", "")
    if not message:
        with contextlib.suppress(msgspec.DecodeError):
            message = msgspec.json.decode(body or b"{}", type=_Denial).err_msg
    try:
        retry_after_s = float(headers["Retry-After"])
    except (KeyError, ValueError):
        retry_after_s = None
    return Refused(status, retry_after_s, message or reason)


def _closed(error: ConnectionClosed) -> ClosedAbnormally:
    frame = error.rcvd
    return (
        ClosedAbnormally(ABNORMAL_CLOSE, "connection lost")
        if frame is None
        else ClosedAbnormally(frame.code, frame.reason)
    )
