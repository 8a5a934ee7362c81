"""`POST /v1/listen`: one recording in the body, one JSON answer."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from server.auth import Credentials
from server.deepgram_prerecorded import recording_answer
from server.deepgram_query import ListenRequest
from server.door import Door
from server.errors import BadParameter, ClientGone, Refused, ServerDraining, ServerFull, TooLarge, TooSlow
from server.media.recording import Recording
from server.replica import Replica, created_now, new_request_id
from server.session import SessionOptions
from server.text_format import FormattedWord
from server.upload import MAX_BACKLOG_S, Upload


class Transcribe:
    """The upload endpoint of one replica."""

    def __init__(self, replica: Replica, door: Door) -> None:
        self._replica = replica
        self._door = door
        self._uploads = 0

    async def upload(self, request: Request) -> Response:
        """Recognise a recording: wav, flac, ogg, mp3, webm, m4a as the body, or raw samples with an `encoding`."""
        request_id = new_request_id()
        settings = self._replica.settings
        credentials = Credentials.read(request.headers.get("authorization"), ())
        try:
            asked = self._door.admit(request, credentials, live=False)
            _check_body_kind(request.headers.get("content-type", ""))
            if self._uploads >= settings.max_uploads:
                raise ServerFull("as many recordings as this server takes at a time are on their way")
            self._uploads += 1
            try:
                body = await _read_body(request, settings.max_upload_bytes, settings.upload_timeout_s)
                payload = await self._recognise(request, asked, body, request_id)
            finally:
                self._uploads -= 1
        except Refused as error:
            return self._door.refuse(error, request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's word for it; nobody is there to read it
        return Response(payload, headers=self._door.headers(asked, request_id), media_type="application/json")

    async def _recognise(self, request: Request, asked: ListenRequest, body: bytes, request_id: str) -> bytes:
        replica = self._replica
        config, created = replica.config, created_now()
        recording = await asyncio.to_thread(
            Recording,
            body,
            asked.form,
            rate=config.sample_rate,
            max_s=replica.settings.max_upload_s,
        )
        if asked.multichannel and recording.channels > replica.settings.max_channels:
            raise BadParameter(f"multichannel: at most {replica.settings.max_channels} channels")
        options = SessionOptions(
            config.sample_rate,
            recording.channels,
            asked.multichannel,
            endpointing_ms=asked.endpointing_ms,
            keyterms=asked.keyterms,
        )
        replica.sessions.refuse_if_draining()
        session = replica.session(options, replace(replica.limits, max_backlog_s=MAX_BACKLOG_S))
        transcripts = await self._run(Upload(session, asked.style), request, recording)
        replica.metrics.audio_seconds[asked.form.encoding].inc(session.audio_s)
        replica.metrics.audio_bytes.inc(len(body))
        return recording_answer(
            transcripts,
            request_id=request_id,
            sha256=hashlib.sha256(body).hexdigest(),
            created=created,
            duration_s=session.audio_s,
            model=replica.card,
            punctuated=asked.punctuated_words,
        )

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


def _check_body_kind(content_type: str) -> None:
    """Any kind is taken for a recording but those that cannot be one. Raises: BadParameter."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        raise BadParameter("url: this server fetches nothing; send the recording as the body")
    if kind.startswith("multipart/"):
        raise BadParameter("content-type: send the recording itself as the body, not a form")


async def _read_body(request: Request, limit_bytes: int, timeout_s: float) -> bytes:
    """Read the whole body. Raises: TooLarge, TooSlow, ClientGone."""
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
