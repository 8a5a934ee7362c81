"""The client without an event loop: `open_stream`, `connect` and `transcribe` for programs that do not use asyncio.

    with open_stream("ws://127.0.0.1:8080", resumable=True) as stream:
        stream.send(pcm)
        stream.close_stream()
        for message in stream:
            if isinstance(message, Results) and message.is_final:
                print(message.text)

Functions, arguments, messages and errors are those of `tutti_asr_client`; the work is done by its asynchronous client,
on one background thread for each stream.

The thread belongs to the `with` block: it starts with it and ends with it. Any thread may call the methods of a stream:
one usually sends while another iterates. The stream can still be used after an interruption (Ctrl-C): a message that
was awaited is delivered by the next call, and an interrupted `send` may have sent a part. Leaving the block closes the
connection.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, ParamSpec, Self, TypeVar

import numpy as np
from anyio.from_thread import BlockingPortal, start_blocking_portal
from numpy.typing import NDArray

from tutti_asr_client import live, resilient, uploads
from tutti_asr_client import stream as streams
from tutti_asr_client.connection_events import ConnectionEvents
from tutti_asr_client.errors import ClosedAbnormally
from tutti_asr_client.live import ABNORMAL_CLOSE
from tutti_asr_client.messages import Message

__all__ = ["ListenClient", "ResilientClient", "connect", "open_stream", "transcribe"]

P = ParamSpec("P")
T = TypeVar("T")
Async = TypeVar("Async", live.ListenClient, resilient.ResilientClient)

THREAD = "tutti-asr-client"
"""Name of a stream's thread, for debuggers."""


class _Stream(Generic[Async]):
    """The methods of a stream; each waits for that of the asynchronous client, which describes it."""

    def __init__(self, client: Async, portal: BlockingPortal) -> None:
        self._client: Async = client
        self._portal = portal
        self._ended = False
        self._awaited: deque[Future[Message | None]] = deque()  # of calls that timed out or were interrupted

    @property
    def request_id(self) -> str | None:
        """The server's id of the current or last connection (`dg-request-id`)."""
        return self._client.request_id

    def send(self, pcm: bytes | NDArray[np.int16]) -> None:
        """Send little-endian samples, any number of them; wait while too much of the audio has no final.

        Raises:
            ClientError: the stream has ended.
        """
        self._wait(self._client.send, pcm)

    def finalize(self, channel: int | None = None) -> None:
        """Request a final of all audio sent so far; the stream stays open."""
        self._wait(self._client.finalize, channel)

    def configure(self, keyterms: Sequence[str]) -> None:
        """Replace the key terms for the audio that follows; answered by `ConfigureSuccess` or `ConfigureFailure`."""
        self._wait(self._client.configure, keyterms)

    def add_context(self, said: str) -> None:
        """Favor the rare words of what another speaker said; answered by `ContextSuccess` or `ContextFailure`."""
        self._wait(self._client.add_context, said)

    def rewind(self, seconds: float, keyterms: Sequence[str] = (), channel: int | None = None) -> None:
        """Decode the finals of the last seconds again; answered by `Results` with `correction`, or `RewindFailure`."""
        self._wait(self._client.rewind, seconds, keyterms, channel)

    def keep_alive(self) -> None:
        """Reset the server's idle timer without sending audio."""
        self._wait(self._client.keep_alive)

    def close_stream(self) -> None:
        """End the audio; after the last final and `Metadata` the iteration ends."""
        self._wait(self._client.close_stream)

    def abort(self) -> None:
        """Drop the connection without a close; the iteration ends with `ClosedAbnormally`."""
        self._wait(_called, self._client.abort)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, or None after the last one.

        Raises:
            TimeoutError: no message within `timeout_s`; none is lost.
            ClientError: the stream cannot continue; see `tutti_asr_client.errors`.
        """
        future = self._awaited.popleft() if self._awaited else self._start(_next, self._client)
        try:
            return future.result(timeout_s)
        except BaseException as error:
            if not future.done() or future.exception() is not error:
                self._awaited.append(future)
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def end(self) -> None:
        """Refuse further calls: the `with` block has ended."""
        self._ended = True

    def _wait(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        return _result(self._start(call, *arguments))

    def _start(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        if self._ended:
            raise ClosedAbnormally(ABNORMAL_CLOSE, "the stream's `with` block has ended")
        return self._portal.start_task_soon(call, *arguments)


class ListenClient(_Stream[live.ListenClient]):
    """An open stream on one connection; iterating over it yields the server's messages until a normal close."""


class ResilientClient(_Stream[resilient.ResilientClient]):
    """An open stream that survives lost connections; iterating over it yields messages until the stream ends."""

    @property
    def events(self) -> ConnectionEvents:
        """Totals of the connections so far."""
        return self._client.events


async def _called(function: Callable[[], None]) -> None:
    """Call a function in the thread of the event loop, which is the only one that may touch a connection."""
    function()


async def _next(client: live.ListenClient | resilient.ResilientClient) -> Message | None:
    try:
        return await anext(client)
    except StopAsyncIteration:
        return None


def _result(future: Future[T]) -> T:
    """Wait for a call in the background thread; cancel it if this thread is interrupted."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


Blocking = TypeVar("Blocking", ListenClient, ResilientClient)


@contextlib.contextmanager
def _opened(
    opening: AbstractAsyncContextManager[Async], kind: Callable[[Async, BlockingPortal], Blocking]
) -> Iterator[Blocking]:
    with start_blocking_portal(name=THREAD) as portal, portal.wrap_async_context_manager(opening) as client:
        stream = kind(client, portal)
        try:
            yield stream
        finally:
            stream.end()


def _blocking(
    opening: Callable[P, AbstractAsyncContextManager[Async]], kind: Callable[[Async, BlockingPortal], Blocking]
) -> Callable[P, AbstractContextManager[Blocking]]:
    """Return a function with the arguments of `opening` that opens the blocking kind of its stream."""

    @functools.wraps(opening)
    def opened(*arguments: P.args, **options: P.kwargs) -> AbstractContextManager[Blocking]:
        return _opened(opening(*arguments, **options), kind)

    return opened


open_stream = _blocking(streams.open_stream, ResilientClient)
connect = _blocking(live.connect, ListenClient)


def _waiting(call: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Return a function with the arguments of `call` that waits for its result."""

    @functools.wraps(call)
    def waited(*arguments: P.args, **options: P.kwargs) -> T:
        with start_blocking_portal(name=THREAD) as portal:
            return _result(portal.start_task_soon(functools.partial(call, *arguments, **options)))

    return waited


transcribe = _waiting(uploads.transcribe)
