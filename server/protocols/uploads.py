"""Recordings that are uploaded, whatever protocol they come in: how many at a time, read whole, recognised behind the
live streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fastapi import Request
from starlette.requests import ClientDisconnect

from server.audio.formats import AudioForm
from server.audio.recording_part import Recording
from server.errors import BadParameter, ClientGone, Refused, ServerDraining, ServerFull, TooLarge, TooSlow
from server.protocols.upload import MAX_BACKLOG_S, Tell, Upload
from server.recognition.keyterms import Keyterms
from server.recognition.session import SessionOptions
from server.replica import Replica
from server.text.formatting import FormattedWord, Style


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be done with a recording."""

    form: AudioForm
    multichannel: bool
    endpointing_ms: float | None
    keyterms: Keyterms
    style: Style


@dataclass(frozen=True, slots=True)
class Recognised:
    """Each channel's words, and how much audio they are of."""

    words: list[list[FormattedWord]]
    audio_s: float


class Recordings:
    """The recordings on their way on one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._taken = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place, from before the body is read. Raises: ServerFull."""
        if self._taken >= self._replica.settings.max_uploads:
            raise ServerFull("as many recordings as this server takes at a time are on their way")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    async def read(self, request: Request) -> bytes:
        """Read the whole body. Raises: TooLarge, TooSlow, ClientGone."""
        settings = self._replica.settings
        return await _read_body(request, settings.max_upload_bytes, settings.upload_timeout_s)

    async def recognise(
        self,
        request: Request,
        body: bytes,
        wanted: Wanted,
        tell: Tell | None = None,
    ) -> Recognised:
        """Recognise a recording; `tell` is given the words of each segment as it ends. Raises: Refused, ClientGone."""
        replica = self._replica
        rate, max_s = replica.config.sample_rate, replica.settings.max_upload_s
        recording = await asyncio.to_thread(Recording, body, wanted.form, rate=rate, max_s=max_s)
        if wanted.multichannel and recording.channels > replica.settings.max_channels:
            raise BadParameter(f"multichannel: at most {replica.settings.max_channels} channels")
        options = SessionOptions(
            rate,
            recording.channels,
            wanted.multichannel,
            endpointing_ms=wanted.endpointing_ms,
            keyterms=wanted.keyterms,
        )
        replica.sessions.refuse_if_draining()
        session = replica.session(options, replace(replica.limits, max_backlog_s=MAX_BACKLOG_S))
        words = await self._run(Upload(session, wanted.style, tell), request, recording)
        replica.metrics.audio_seconds[wanted.form.encoding].inc(session.audio_s)
        replica.metrics.audio_bytes.inc(len(body))
        return Recognised(words, session.audio_s)

    async def _run(self, upload: Upload, request: Request, recording: Recording) -> list[list[FormattedWord]]:
        replica = self._replica
        recognition = replica.recognizer.open(upload.session, upload, background=True)
        replica.sessions.add(upload, "upload")
        began_s, outcome = replica.clock(), "client_abort"
        try:
            transcripts = await upload.run(recording, recognition, request.is_disconnected, replica.clock)
        except ServerDraining:
            outcome = "drained"
            raise
        except Refused:
            outcome = "error"
            raise
        else:
            outcome = "completed"
            return transcripts
        finally:
            recognition.close()
            replica.sessions.remove(upload)
            replica.metrics.sessions.labels("upload", outcome).inc()
            replica.metrics.session_duration.observe(replica.clock() - began_s)


async def _read_body(request: Request, limit_bytes: int, timeout_s: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise TooLarge(f"the body is larger than {limit_bytes} bytes")
                parts.append(part)
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {timeout_s:g} s") from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return b"".join(parts)
