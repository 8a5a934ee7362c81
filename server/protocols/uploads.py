"""Uploads of any protocol: a limit on concurrent ones, the whole body in memory, recognition at background priority.

The number of uploads and the memory of their bodies are bounded by `server.protocols.upload_places`. A body below the
minimum rate is ended in any case.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect

from server.audio.recordings.remote_recording import forked_recording
from server.errors import BadParameter, ClientGone, Refused, ServerDraining, TooLarge, TooManyUploads, TooSlow
from server.models.service import ModelService
from server.protocols.features import SHOWN
from server.protocols.handshake import read_session, subject_of
from server.protocols.upload import OnSegment, Upload
from server.protocols.upload_places import GRACE_S, Place, Stage, UploadPlaces
from server.recognition.request import Request as Asked
from server.recognition.segments.segmenter import other_words
from server.recognition.session import Session
from server.recognition.session_options import SessionOptions
from server.replica import Replica
from server.settings import UPLOADS_A_PLACE
from server.streaming.client_timer import ClientTimer
from server.text.formatting import FormattedWord
from server.usage.meters import Subject

BODY_TIMEOUT_S = 120.0  # for the body of an upload to arrive
LEAST_BYTES_PER_S = 1_000.0  # of a body after its first seconds, `GRACE_S`; a slower one is answered 408
PLACE = "tutti.upload_place"  # key in the request's ASGI scope


@dataclass(frozen=True, slots=True)
class Recognized:
    """Words per channel, seconds of audio, and warnings about the body in the form `kind: sentence`."""

    words: list[list[FormattedWord]]
    audio_s: float
    warnings: tuple[str, ...] = ()
    other_words: int = 0  # by other voices than the one that is listened to
    voices: tuple[Mapping[int, NDArray[np.float32]], ...] = ()  # per channel, by speaker: a vector of norm 1


class Recordings:
    """The uploads of one replica; their number and the memory of their bodies are bounded."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        settings = replica.settings
        self._places = UploadPlaces(
            settings.uploads_here * UPLOADS_A_PLACE, settings.uploads_here * settings.max_upload_bytes
        )
        for stage in get_args(Stage):
            replica.metrics.uploads_active.labels(stage).set_function(partial(self._places.count, stage))

    @contextmanager
    def place(self, request: Request, body: bytes | None = None) -> Iterator[None]:
        """Hold an upload place for an admitted request; enter before its body is read. Raises: TooManyUploads.

        `body`: that of a recording which arrived before.
        """
        upload_place = self._places.take(self._replica.guard.owner(request), asyncio.get_running_loop().time())
        request.scope[PLACE] = upload_place
        try:
            if body is not None:
                self._places.receive(upload_place, len(body))
                upload_place.stage = "waiting"
            yield
        finally:
            self._places.release(upload_place)

    async def read(self, request: Request) -> bytes:
        """Read the whole body of a request that has a place. Raises: TooLarge, TooSlow, ClientGone."""
        settings, upload_place = self._replica.settings, request.scope[PLACE]
        on_size = partial(self._places.receive, upload_place)
        body = await read_body(request, settings.max_upload_bytes, BODY_TIMEOUT_S, upload_place, on_size=on_size)
        upload_place.stage = "waiting"
        return body

    async def recognize(
        self,
        request: Request,
        body: bytes,
        model: ModelService,
        wanted: Asked,
        *,
        protocol: str,
        request_id: str,
        on_segment: OnSegment | None = None,
    ) -> Recognized:
        """Recognize a recording; call `on_segment` with each segment's words. Raises: Refused, ClientGone.

        `protocol` and `request_id` are for its usage record. Waits while live streams use the whole capacity; refused
        with `ServerFull` if that lasts. Ends as soon as the client disconnects.
        """
        replica = self._replica
        rate, max_s = model.config.sample_rate, replica.settings.max_upload_s
        async with _while_wanted(request, model), forked_recording(replica.forks) as recording:
            upload = Upload(recording, wanted.style, on_segment)
            replica.sessions.add(upload, "upload")
            try:
                await upload.open(body, wanted.form, rate=rate, max_s=max_s)
                session = self._session(model, wanted, recording.channels, finals_at_end=on_segment is None)
                subject = subject_of(request, model, kind="upload", protocol=protocol, request_id=request_id)
                words = await self._run(request, model, upload, session, subject)
            finally:
                replica.sessions.remove(upload)
        replica.metrics.audio_seconds[wanted.form.encoding].value += session.audio.received_s
        replica.metrics.audio_bytes.value += len(body)
        voices = tuple([{} if one.speakers is None else one.speakers.voices for one in session.channels])
        return Recognized(
            words, session.audio.received_s, tuple(recording.warnings), other_words(session.channels), voices
        )

    def _session(self, model: ModelService, wanted: Asked, channels: int, *, finals_at_end: bool) -> Session:
        """Return the session of a recording, without what only live streams have. Raises: BadParameter."""
        replica, options = self._replica, wanted.options
        if options.multichannel and channels > replica.settings.max_channels:
            raise BadParameter(f"multichannel: {channels} channels; at most {replica.settings.max_channels}")
        own_options = SessionOptions(
            channels=channels,
            multichannel=options.multichannel,
            endpointing_ms=options.endpointing_ms,
            keyterms=options.keyterms,
            language=options.language,
            grammar=options.grammar,
            finals=options.finals,
            redact=options.redact,
            finals_at_end=finals_at_end,
            speakers=None if options.speakers is None else replace(options.speakers, at_end=finals_at_end),
            rest=options.rest,
        )
        # `Upload` reads no further than `IN_FLIGHT_S` ahead, so the limit for live clients does not apply.
        return model.session(replace(wanted, options=own_options), replace(replica.limits, max_backlog_s=math.inf))

    async def _run(
        self, request: Request, model: ModelService, upload: Upload, session: Session, subject: Subject
    ) -> list[list[FormattedWord]]:
        replica = self._replica
        replica.sessions.add(upload, "upload", len(session.channels))
        began_s, outcome, recognition, usage = replica.clock(), "client_abort", None, None
        try:
            recognition = await model.recognizer.open_in_background(session, upload)
            request.scope[PLACE].stage = "recognizing"
            usage = replica.usage.begin(subject, lambda: read_session(session, upload.style))
            transcripts = await upload.run(session, recognition, replica.clock)
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
            if recognition is not None:
                recognition.close()
            if usage is not None:
                usage.end(outcome)
            replica.metrics.sessions.labels("upload", outcome).inc()
            replica.metrics.session_duration.observe(replica.clock() - began_s)


async def read_body(
    request: Request,
    limit_bytes: int,
    timeout_s: float,
    upload_place: Place | None = None,
    *,
    on_size: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Read a whole body; with a place, enforce the minimum rate. `on_size` receives the bytes so far.

    Raises: BadParameter if it is compressed; TooLarge, TooSlow, ClientGone; what `on_size` raises.
    """
    for name in ("content-encoding", "transfer-encoding"):
        coding = request.headers.get(name, "")
        if coding.strip().casefold() not in ("", "identity", "chunked"):
            raise BadParameter(f"{name}: {coding[:SHOWN]!a} is not supported; send the body without compression")
    loop, parts = asyncio.get_running_loop(), list[bytes]()
    end_s, size = loop.time() + timeout_s, 0
    if int(request.headers.get("content-length", 0)) > limit_bytes:  # a number: the HTTP server has checked it
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(None) as deadline:
            timer = _end_at(
                loop,
                deadline,
                lambda: min(end_s, upload_place.too_slow_at(LEAST_BYTES_PER_S) if upload_place else end_s),
            )
            if upload_place is not None:
                upload_place.end_early = lambda: deadline.reschedule(loop.time())
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise _too_large(limit_bytes)
                parts.append(part)
                on_size(size)
    except TimeoutError as error:
        raise _too_slow(upload_place, loop.time() >= end_s, timeout_s) from error
    except ClientDisconnect as error:
        raise ClientGone from error
    finally:
        timer.cancel()
        if upload_place is not None:
            upload_place.end_early = None
    return b"".join(parts)


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than the limit of {limit_bytes} bytes; send less at a time")


def _end_at(loop: asyncio.AbstractEventLoop, deadline: asyncio.Timeout, ends_s: Callable[[], float]) -> ClientTimer:
    """Expire `deadline` at the time of `ends_s`, later if the process stood still; cancel the result."""

    def look() -> None:
        left_s = ends_s() + timer.stood_still_s - loop.time()
        if left_s > 0:
            timer.start(left_s, look)
        elif not deadline.expired():
            deadline.reschedule(loop.time())

    timer = ClientTimer(loop, ends_s() - loop.time(), look)
    return timer


def _too_slow(place: Place | None, timed_out: bool, timeout_s: float) -> TooSlow:
    if place is not None and place.gave_way:
        return TooSlow("all upload places are taken, and this body gave its place to another; send it again, or faster")
    if timed_out:
        return TooSlow(f"the body did not arrive within {timeout_s:g} s; split the recording, or send it faster")
    return TooSlow(f"the body is slower than {LEAST_BYTES_PER_S:g} bytes/s after {GRACE_S:g} s; send it faster")


@asynccontextmanager
async def _while_wanted(request: Request, model: ModelService) -> AsyncIterator[None]:
    """Keep the model; cancel what runs in the context once the client is gone, or once another upload needs the place.

    Raises: ClientGone, TooManyUploads.
    """
    upload_place: Place = request.scope[PLACE]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as wanted:

            def end() -> None:
                if not wanted.expired():
                    wanted.reschedule(loop.time())

            upload_place.end_early = end
            watching = asyncio.create_task(_until_gone(request, end))
            try:
                with model.recognizer.slots.for_recording():
                    yield
            finally:
                watching.cancel()
                upload_place.end_early = None
    except TimeoutError as error:
        if not wanted.expired():
            raise
        if upload_place.gave_way:
            raise TooManyUploads(
                "all upload places are taken, most by this caller; send the recording again"
            ) from error
        raise ClientGone from error


async def _until_gone(request: Request, then: Callable[[], None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    then()
