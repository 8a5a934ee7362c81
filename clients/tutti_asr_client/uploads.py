"""Transcribes a whole recording with one call: `await transcribe("speech.wav", "ws://127.0.0.1:8080")`.

The recording is sent as one HTTP request, and the server decodes it. After a lost connection or from a full server it
is sent again by the rules of `retry`, to the next address if there are several. Does not decode audio, so any format
that the server reads is accepted.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tutti_asr_client.address import QueryValue, is_loopback, listen_url
from tutti_asr_client.connection_events import Event, Waiting
from tutti_asr_client.errors import AudioError, BadMessage, ClientError, ClosedAbnormally, Unreachable
from tutti_asr_client.live import ABNORMAL_CLOSE, refused
from tutti_asr_client.messages import Channel, Word
from tutti_asr_client.retry import Attempts, Retry

HERE = "ws://127.0.0.1:8080"
"""Address of a server that runs on this machine with its default port."""

ANSWER_WITHIN_S = 600.0
"""Time to wait for an answer: a recording may first wait for live streams, and is then recognized as a whole."""

BODY_KIND = "application/octet-stream"
"""The server recognizes a container by its first bytes."""


class Utterance(msgspec.Struct, frozen=True):
    """With `utterances=True`: what one side said without a pause; `start` and `end` in seconds of the recording."""

    start: float
    end: float
    transcript: str
    channel: int = 0
    confidence: float = 0.0
    words: tuple[Word, ...] = ()


class Warned(msgspec.Struct, frozen=True):
    """A warning of the server, for example that a damaged part of the recording was left out."""

    type: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Transcription:
    """A transcribed recording: a transcript for each channel, one channel unless `multichannel=True`."""

    request_id: str
    duration: float
    channels: tuple[Channel, ...]
    utterances: tuple[Utterance, ...] = ()
    warnings: tuple[Warned, ...] = ()

    @property
    def text(self) -> str:
        """The text of the first channel."""
        return self.channels[0].alternatives[0].transcript

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the first channel, with times in seconds of the recording."""
        return self.channels[0].alternatives[0].words


class _Summary(msgspec.Struct):
    request_id: str
    duration: float
    warnings: tuple[Warned, ...] = ()


class _Results(msgspec.Struct):
    channels: tuple[Channel, ...]
    utterances: tuple[Utterance, ...] = ()


class _Answer(msgspec.Struct):
    metadata: _Summary
    results: _Results


def transcription(body: bytes) -> Transcription:
    """Return the transcription in the body of an answer.

    Raises:
        BadMessage: not an answer to a recording.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError as error:
        raise BadMessage(f"the answer to an upload is invalid: {error}") from error
    results, summary = answer.results, answer.metadata
    if not results.channels or not all(channel.alternatives for channel in results.channels):
        raise BadMessage("the answer to an upload has a channel without a transcript")
    return Transcription(summary.request_id, summary.duration, results.channels, results.utterances, summary.warnings)


async def transcribe(
    file: str | os.PathLike[str] | bytes,
    url: str | Sequence[str] = HERE,
    *,
    api_key: str | None = None,
    retry: Retry | None = None,
    open_timeout_s: float = 10.0,
    answer_timeout_s: float = ANSWER_WITHIN_S,
    on_event: Callable[[Event], None] | None = None,
    **query: QueryValue,
) -> Transcription:
    """Transcribe a recording; further keyword arguments are added to the query of `POST /v1/listen`.

    `file`: a path, or the bytes of a file. Samples without a container need `encoding` and `sample_rate`. `url`: one
    address, or those of several replicas, which are tried in order. `on_event` is called with a `Waiting` before each
    further attempt.

    Raises:
        AudioError: the file cannot be read.
        ClientError: see `tutti_asr_client.errors`; no server transcribed it within `retry`.
    """
    urls = [url] if isinstance(url, str) else list(url)
    addresses = ["http" + listen_url(one, query).removeprefix("ws") for one in urls]
    body = file if isinstance(file, bytes) else await asyncio.to_thread(_read, Path(file))
    attempts, loop = Attempts(addresses, retry or Retry()), asyncio.get_running_loop()
    while True:
        try:
            return await _upload(attempts.url, body, api_key, open_timeout_s, answer_timeout_s)
        except _NoAnswer:
            raise
        except ClientError as error:
            now = loop.time()
            if isinstance(error, ClosedAbnormally):
                attempts.connected(now)  # there was a server; all time since the first failure counts
            next_try = attempts.failed(error, now)
            if on_event is not None:
                on_event(Waiting(error, next_try.url, next_try.wait_s, attempts.failures))
        await asyncio.sleep(next_try.wait_s)


class _NoAnswer(Unreachable):
    """No answer in time to a complete request; repeating it would only take that long again."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AudioError(path, (error.strerror or str(error)).lower()) from error


async def _upload(
    url: str, body: bytes, api_key: str | None, open_timeout_s: float, answer_timeout_s: float
) -> Transcription:
    """Send a recording once. Raises: Unreachable, Refused, ClosedAbnormally, BadMessage."""
    import httpx  # here, because it takes longer to import than all of the live client

    headers = {"Content-Type": BODY_KIND}
    headers |= {} if api_key is None else {"Authorization": f"Token {api_key}"}
    certificates = ssl.create_default_context() if url.startswith("https:") else False  # the system's, as for `connect`
    timeout = httpx.Timeout(answer_timeout_s, connect=open_timeout_s)
    try:
        async with httpx.AsyncClient(timeout=timeout, verify=certificates, trust_env=not is_loopback(url)) as client:
            answer = await client.post(url, content=body, headers=headers)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
        raise Unreachable(url, str(error) or "no answer to the attempt to connect") from error
    except httpx.TimeoutException as error:
        raise _NoAnswer(url, f"no answer within {answer_timeout_s:g} s") from error
    except httpx.TransportError as error:
        raise ClosedAbnormally(ABNORMAL_CLOSE, "connection lost") from error
    if answer.is_success:
        return transcription(answer.content)
    raise refused(answer.status_code, answer.headers, answer.content, answer.reason_phrase)
