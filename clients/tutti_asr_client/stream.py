"""Opens a live stream that survives lost connections.

    async with open_stream("ws://127.0.0.1:8080", resumable=True) as stream:
        await stream.send(pcm)
        await stream.close_stream()
        async for message in stream:
            ...
        print(stream.events)

Builds the query and combines `Continuity`, `Attempts` and `ResilientClient`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from tutti_asr_client.address import QueryValue, listen_url
from tutti_asr_client.audio_shape import AudioShape
from tutti_asr_client.connection_events import Event
from tutti_asr_client.continuity import Continuity
from tutti_asr_client.live import ListenClient, connect
from tutti_asr_client.resilient import REPLAY_SPEED, ResilientClient
from tutti_asr_client.retry import Attempts, Retry
from tutti_asr_client.send_log import PIECE_BYTES

HELD_S = 120.0
"""Seconds of audio kept for a replay: an utterance, network buffers, and an outage of a minute."""

CLOSE_TIMEOUT_S = 0.5
"""Time to wait for a server's close: the stream is waiting to continue elsewhere."""


@contextlib.asynccontextmanager
async def open_stream(
    url: str | Sequence[str],
    *,
    api_key: str | None = None,
    sample_rate: int = 16000,
    encoding: str = "linear16",
    channels: int = 1,
    multichannel: bool = False,
    interim_results: bool = True,
    resumable: bool = False,
    rewind: int = 0,
    retry: Retry | None = None,
    held_s: float = HELD_S,
    replay_speed: float = REPLAY_SPEED,
    dead_after_s: float = 15.0,
    open_timeout_s: float = 10.0,
    on_event: Callable[[Event], None] | None = None,
    **query: QueryValue,
) -> AsyncIterator[ResilientClient]:
    """Open a stream of raw audio; further keyword arguments are added to the query.

    `url`: one address, or those of several replicas, which are tried in order. `resumable`: request tickets, with which
    any replica continues exactly where the connection was lost; without tickets the audio since the last final is sent
    again. `rewind`: seconds of finals that `rewind` can decode again, not with `resumable`; their audio is sent again
    too, without delivering their results again. `held_s` seconds of further audio are kept in memory for that, and
    sent at `replay_speed` times real time. A server that does not answer a ping within `dead_after_s` counts as lost.
    `on_event` is called with each connection event; an error of its ends the stream and is raised by the next call.

    Raises:
        ValueError: the encoding cannot be resumed at any position.
        ClientError: see `tutti_asr_client.errors`; no connection could be opened within `retry`.
    """
    shape = AudioShape.of(sample_rate, encoding, channels, multichannel=multichannel)
    urls = [url] if isinstance(url, str) else list(url)
    settings: dict[str, QueryValue] = {"encoding": encoding, **query}
    settings |= {"channels": channels} if channels != 1 else {}
    settings |= {"multichannel": True} if multichannel else {}
    settings |= {"resumable": True} if resumable else {}
    settings |= {"rewind": rewind} if rewind else {}
    for address in urls:
        listen_url(address, {})  # raises on an invalid one before any is tried

    def open_connection(address: str) -> contextlib.AbstractAsyncContextManager[ListenClient]:
        return connect(
            address,
            api_key=api_key,
            sample_rate=sample_rate,
            interim_results=interim_results,
            open_timeout_s=open_timeout_s,
            dead_after_s=dead_after_s,
            close_timeout_s=CLOSE_TIMEOUT_S,
            **settings,
        )

    client = ResilientClient(
        Continuity(shape, max(shape.size(held_s + rewind), 2 * PIECE_BYTES), rewind),
        Attempts(urls, retry or Retry()),
        open_connection,
        replay_speed=replay_speed,
        on_event=on_event,
    )
    try:
        await client.start()
        yield client
    finally:
        await client.stop()
