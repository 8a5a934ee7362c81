"""`POST /v1/listen`: one recording in the body, one JSON answer."""

from __future__ import annotations

import hashlib

from fastapi import Request, Response

from server.access.guard import Door
from server.access.keys import Credentials
from server.errors import BadParameter, ClientGone, Refused
from server.protocols.deepgram.deepgram_prerecorded import recording_answer
from server.protocols.deepgram.query import ListenRequest
from server.protocols.uploads import Recordings, Wanted
from server.replica import Replica, created_now, new_request_id


class Transcribe:
    """The upload endpoint of one replica."""

    def __init__(self, replica: Replica, door: Door, recordings: Recordings) -> None:
        self._replica = replica
        self._door = door
        self._recordings = recordings

    async def upload(self, request: Request) -> Response:
        """Recognise a recording: wav, flac, ogg, mp3, webm, m4a as the body, or raw samples with an `encoding`."""
        request_id = new_request_id()
        credentials = Credentials.read(request.headers.get("authorization"), ())
        try:
            asked = self._door.admit(request, credentials, live=False)
            _check_body_kind(request.headers.get("content-type", ""))
            with self._recordings.place():
                body = await self._recordings.read(request)
                payload = await self._recognise(request, asked, body, request_id)
        except Refused as error:
            return self._door.refuse(error, request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's word for it; nobody is there to read it
        return Response(payload, headers=self._door.headers(asked, request_id), media_type="application/json")

    async def _recognise(self, request: Request, asked: ListenRequest, body: bytes, request_id: str) -> bytes:
        created = created_now()
        wanted = Wanted(asked.form, asked.multichannel, asked.endpointing_ms, asked.keyterms, asked.style)
        recognised = await self._recordings.recognise(request, body, wanted)
        return recording_answer(
            recognised.words,
            request_id=request_id,
            sha256=hashlib.sha256(body).hexdigest(),
            created=created,
            duration_s=recognised.audio_s,
            model=self._replica.card,
            punctuated=asked.punctuated_words,
        )


def _check_body_kind(content_type: str) -> None:
    """Any kind is taken for a recording but those that cannot be one. Raises: BadParameter."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        raise BadParameter("url: this server fetches nothing; send the recording as the body")
    if kind.startswith("multipart/"):
        raise BadParameter("content-type: send the recording itself as the body, not a form")
