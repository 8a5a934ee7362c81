"""Open a live stream that survives lost connections: the client to use unless one connection is what you want.

    async with open_stream("ws://127.0.0.1:8080", resumable=True) as stream:
        await stream.send(pcm)
        await stream.close_stream()
        async for message in stream:
            ...
        print(stream.journey)

Joins the parts; knows what a query is made of, and what may be asked of a user.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from tutti_asr_client.address import QueryValue, listen_url
from tutti_asr_client.audio_shape import SAMPLE_BYTES, AudioShape
from tutti_asr_client.connection_events import Event
from tutti_asr_client.continuity import Continuity
from tutti_asr_client.live import ListenClient, connect
from tutti_asr_client.resilient import REPLAY_SPEED, ResilientClient
from tutti_asr_client.retry import Attempts, Retry
from tutti_asr_client.send_log import PIECE_BYTES

HELD_S = 120.0
"""Audio that is kept: an utterance, what lies in buffers on the way, and an outage of a minute."""

CLOSE_TIMEOUT_S = 0.5
"""For a server that has said goodbye to hang up: the stream waits to go on elsewhere."""


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
    retry: Retry | None = None,
    held_s: float = HELD_S,
    replay_speed: float = REPLAY_SPEED,
    dead_after_s: float = 15.0,
    open_timeout_s: float = 10.0,
    on_event: Callable[[Event], None] | None = None,
    **query: QueryValue,
) -> AsyncIterator[ResilientClient]:
    """Open a stream of raw audio; further keyword arguments go into the query.

    `url`: one address, or several replicas' that are tried in turn. `resumable`: ask for tickets, with which any
    replica goes on exactly where the lost one was; a server without them hears the audio since the last final again.
    `held_s` of audio are kept in memory for that. `replay_speed`: times real time at which audio is said again. A
    server that does not answer a ping within `dead_after_s` is left. `on_event` is told what happens on the way.

    Raises:
        ValueError: an encoding that cannot be taken up in the middle.
        ClientError: see `tutti_asr_client.errors`; no connection could be had within `retry`.
    """
    shape = audio_shape(sample_rate, encoding, channels, multichannel=multichannel)
    urls = [url] if isinstance(url, str) else list(url)
    settings: dict[str, QueryValue] = {"encoding": encoding, **query}
    settings |= {"channels": channels} if channels != 1 else {}
    settings |= {"multichannel": True} if multichannel else {}
    settings |= {"resumable": True} if resumable else {}
    for address in urls:
        listen_url(address, {})  # a bad one is told at once

    def connecting(address: str) -> contextlib.AbstractAsyncContextManager[ListenClient]:
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
        Continuity(shape, max(shape.size(held_s), 2 * PIECE_BYTES)),
        Attempts(urls, retry or Retry()),
        connecting,
        replay_speed=replay_speed,
        on_event=on_event,
    )
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


def audio_shape(sample_rate: int, encoding: str, channels: int, *, multichannel: bool) -> AudioShape:
    """What the bytes of a stream mean.

    Raises:
        ValueError: an encoding that cannot be taken up in the middle.
    """
    if encoding not in SAMPLE_BYTES:
        raise ValueError(f"{encoding} is none of {', '.join(SAMPLE_BYTES)}")
    return AudioShape(sample_rate, SAMPLE_BYTES[encoding], channels, channels if multichannel else 1)
