"""Uploads of any protocol: a limit on concurrent ones, the whole body in memory, recognition at background priority."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, get_args

from fastapi import Request
from starlette.requests import ClientDisconnect

from model.ctc.words import Word
from server.audio.formats import AudioForm
from server.audio.remote_recording import RemoteRecording, forked_recording
from server.errors import (
    BadAudio,
    BadParameter,
    ClientGone,
    CloseReason,
    RecognitionFailed,
    Refused,
    ServerDraining,
    TooLarge,
    TooManyUploads,
    TooSlow,
)
from server.models.service import ModelService
from server.protocols.metering import read_session, subject_of
from server.protocols.upload_places import GRACE_S, Place, Stage, UploadPlaces
from server.recognition.active_session import ActiveSession
from server.recognition.events import Closed, Event, Final, FinalReason, StepTiming, StreamBroken
from server.recognition.keyterms.keyterms import Keyterms
from server.recognition.session import Session
from server.recognition.session_options import IN_FLIGHT_S, Finals, SessionOptions
from server.replica import Replica
from server.settings import UPLOADS_A_PLACE
from server.streaming.client_timer import ClientTimer
from server.text.formatting import FormattedWord, Sentences, Style
from server.text.number_words import is_row
from server.text.redaction_kinds import Redaction

NUMBER_PAUSE_S = 2.0  # of a pause within a number that is read aloud
ROW_WORDS = 3  # digits at the end of a segment that may go on in the next one
PLACE = "tutti.upload_place"  # key in the request's ASGI scope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Model and options for recognizing a recording; protocol and id of the request, for its usage record."""

    model: ModelService
    form: AudioForm
    multichannel: bool
    endpointing_ms: float | None
    keyterms: Keyterms
    style: Style
    grammar: str = ""
    finals: Finals | None = None
    redact: frozenset[Redaction] = frozenset()
    protocol: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Recognized:
    """Words per channel, seconds of audio, and warnings about the body in the form `kind: sentence`."""

    words: list[list[FormattedWord]]
    audio_s: float
    warnings: tuple[str, ...] = ()


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
    def place(self, request: Request) -> Iterator[None]:
        """Hold an upload place for an admitted request; enter before its body is read. Raises: TooManyUploads."""
        place = self._places.take(self._replica.guard.owner(request), asyncio.get_running_loop().time())
        request.scope[PLACE] = place
        try:
            yield
        finally:
            self._places.release(place)

    async def read(self, request: Request) -> bytes:
        """Read the whole body of a request that has a place. Raises: TooLarge, TooSlow, ClientGone."""
        settings, place = self._replica.settings, request.scope[PLACE]
        body = await read_body(
            request,
            settings.max_upload_bytes,
            settings.upload_timeout_s,
            place,
            settings.min_upload_bytes_per_s,
            on_size=partial(self._places.receive, place),
        )
        place.stage = "waiting"
        return body

    async def recognize(
        self,
        request: Request,
        body: bytes,
        wanted: Wanted,
        on_segment: OnSegment | None = None,
    ) -> Recognized:
        """Recognize a recording; call `on_segment` with each segment's words. Raises: Refused, ClientGone.

        Waits while live streams use the whole capacity; refused with `ServerFull` if that lasts. Ends as soon as the
        client disconnects.
        """
        replica = self._replica
        rate, max_s = wanted.model.config.sample_rate, replica.settings.max_upload_s
        async with _while_wanted(request), forked_recording(replica.forks) as recording:
            upload = Upload(recording, wanted.style, on_segment)
            replica.sessions.add(upload, "upload")
            try:
                await upload.open(body, wanted.form, rate=rate, max_s=max_s)
                session = self._session(wanted, recording.channels, finals_at_end=on_segment is None)
                words = await self._run(wanted, upload, session, request)
            finally:
                replica.sessions.remove(upload)
        replica.metrics.audio_seconds[wanted.form.encoding].inc(session.audio_s)
        replica.metrics.audio_bytes.inc(len(body))
        return Recognized(words, session.audio_s, tuple(recording.warnings))

    def _session(self, wanted: Wanted, channels: int, *, finals_at_end: bool) -> Session:
        """Return the session of a recording. Raises: BadParameter, ServerDraining."""
        replica = self._replica
        if wanted.multichannel and channels > replica.settings.max_channels:
            raise BadParameter(f"multichannel: {channels} channels; at most {replica.settings.max_channels}")
        options = SessionOptions(
            wanted.model.config.sample_rate,
            channels,
            wanted.multichannel,
            endpointing_ms=wanted.endpointing_ms,
            keyterms=wanted.keyterms,
            grammar=wanted.grammar,
            finals=wanted.finals,
            redact=wanted.redact,
            finals_at_end=finals_at_end,
        )
        # `Upload` reads no further than `IN_FLIGHT_S` ahead, so the limit for live clients does not apply.
        return wanted.model.session(options, replace(replica.limits, max_backlog_s=math.inf))

    async def _run(
        self, wanted: Wanted, upload: Upload, session: Session, request: Request
    ) -> list[list[FormattedWord]]:
        replica = self._replica
        replica.sessions.add(upload, "upload", len(session.channels))
        began_s, outcome, recognition, usage = replica.clock(), "client_abort", None, None
        try:
            recognition = await wanted.model.recognizer.open_in_background(session, upload)
            request.scope[PLACE].stage = "recognizing"
            usage = replica.usage.begin(
                subject_of(
                    request, wanted.model, kind="upload", protocol=wanted.protocol, request_id=wanted.request_id
                ),
                lambda: read_session(session, wanted.style),
            )
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
    place: Place | None = None,
    least_bytes_per_s: float = 1.0,
    *,
    on_size: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Read a whole body; with a place, enforce the minimum rate. `on_size` receives the bytes so far.

    Raises: TooLarge, TooSlow, ClientGone; what `on_size` raises.
    """
    loop, parts = asyncio.get_running_loop(), list[bytes]()
    end_s, size = loop.time() + timeout_s, 0
    if int(request.headers.get("content-length", 0)) > limit_bytes:  # a number: the HTTP server has checked it
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(None) as deadline:
            timer = _end_at(loop, deadline, lambda: _ends_at(place, end_s, least_bytes_per_s))
            if place is not None:
                place.end_early = lambda: deadline.reschedule(loop.time())
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise _too_large(limit_bytes)
                parts.append(part)
                on_size(size)
    except TimeoutError as error:
        raise _too_slow(place, loop.time() >= end_s, timeout_s, least_bytes_per_s) from error
    except ClientDisconnect as error:
        raise ClientGone from error
    finally:
        timer.cancel()
        if place is not None:
            place.end_early = _nothing
    return b"".join(parts)


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than the limit of {limit_bytes} bytes; send less at a time")


def _end_at(loop: asyncio.AbstractEventLoop, deadline: asyncio.Timeout, ends_s: Callable[[], float]) -> ClientTimer:
    """Expire `deadline` at the time of `ends_s`, later if the process stood still; cancel the result."""

    def look() -> None:
        left_s = ends_s() + timer.stood_still_s - loop.time()
        if left_s > 0:
            timer.start(left_s)
        elif not deadline.expired():
            deadline.reschedule(loop.time())

    timer = ClientTimer(loop, ends_s() - loop.time(), look)
    return timer


def _ends_at(place: Place | None, end_s: float, least_bytes_per_s: float) -> float:
    return end_s if place is None else min(end_s, place.too_slow_at(least_bytes_per_s))


def _too_slow(place: Place | None, timed_out: bool, timeout_s: float, least_bytes_per_s: float) -> TooSlow:
    if place is not None and place.gave_way:
        return TooSlow("all upload places are taken, and this body gave its place to another; send it again, or faster")
    if timed_out:
        return TooSlow(f"the body did not arrive within {timeout_s:g} s; split the recording, or send it faster")
    return TooSlow(f"the body is slower than {least_bytes_per_s:g} bytes/s after {GRACE_S:g} s; send it faster")


@asynccontextmanager
async def _while_wanted(request: Request) -> AsyncIterator[None]:
    """Cancel what runs in the context once the client disconnects, or once another upload needs the place.

    Raises: ClientGone, TooManyUploads.
    """
    place: Place = request.scope[PLACE]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as wanted:

            def end() -> None:
                if not wanted.expired():
                    wanted.reschedule(loop.time())

            place.end_early = end
            watching = asyncio.create_task(_until_gone(request, end))
            try:
                yield
            finally:
                watching.cancel()
                place.end_early = _nothing
    except TimeoutError as error:
        if not wanted.expired():
            raise
        if place.gave_way:
            raise TooManyUploads(
                "all upload places are taken, most by this caller; send the recording again"
            ) from error
        raise ClientGone from error


async def _until_gone(request: Request, then: Callable[[], None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    then()


def _nothing() -> None:
    """`end_early` of a place whose upload is not ended: does nothing."""


OnSegment = Callable[[Sequence[FormattedWord]], None]


class Upload:
    """Feeds a recording to its session at the rate of the results, and collects the words."""

    def __init__(self, recording: RemoteRecording, style: Style, on_segment: OnSegment | None = None) -> None:
        self._recording = recording
        self._session: Session | None = None  # until the recording is open
        self._style = style
        self._on_segment = on_segment
        self._joins_numbers = style.numerals and style.english and on_segment is None
        self._sentences: list[Sentences] = []
        self._pending: list[list[Word]] = []  # end in digits that may go on
        self._words: list[list[FormattedWord]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: Refused | None = None
        self._ended = False

    @property
    def backlog_s(self) -> float:
        """Seconds of audio without a result."""
        return 0.0 if self._session is None else self._session.backlog_s

    async def open(self, body: bytes, form: AudioForm, *, rate: int, max_s: float) -> None:
        """Open the recording. Raises: Refused."""
        await self._decoded(self._recording.open(body, form, rate=rate, max_s=max_s))

    def drain(self) -> None:
        """Fail with `ServerDraining`; the client has to send the recording again, to another replica."""
        self._fail(ServerDraining("the server is restarting; send the recording again"))

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:  # noqa: ARG002 - a sink's
        """Collect the words of a step's events."""
        for event in events:
            if isinstance(event, Final):
                self._add(event)
            elif isinstance(event, Closed):
                for channel in range(len(self._words)):
                    self._add_pending(channel)
                self._ended = True
            elif isinstance(event, StreamBroken):
                self._fail(RecognitionFailed("recognition failed on this recording"))
        if self._ended or self.backlog_s <= IN_FLIGHT_S / 2:
            self._wake()

    def _add(self, final: Final) -> None:
        """Format a segment, or keep its words: the next one may have more digits of a number read with pauses."""
        pending, words = self._pending[final.channel], list(final.words)
        ends = final.reason is not FinalReason.MAX_LEN
        texts = [word.text for word in words]
        if pending and not words:
            return
        if pending and is_row(texts) and words[0].start_s - pending[-1].end_s < NUMBER_PAUSE_S:
            pending += words
            return
        self._add_pending(final.channel)
        if self._joins_numbers and ends and words and (is_row(texts) or is_row(texts[-ROW_WORDS:])):
            self._pending[final.channel] = words
            return
        formatted = self._sentences[final.channel].final(final.words, ends=ends)
        self._words[final.channel] += formatted
        if self._on_segment is not None:
            self._on_segment(formatted)

    def _add_pending(self, channel: int) -> None:
        words, self._pending[channel] = self._pending[channel], []
        if words:
            self._words[channel] += self._sentences[channel].final(words, ends=True, pause_s=NUMBER_PAUSE_S)

    def begin(self, session: Session) -> None:
        """Collect the words of a session from now on."""
        self._session = session
        for _ in session.channels:
            self._sentences.append(Sentences(self._style))
            self._pending.append([])
            self._words.append([])

    async def run(
        self, session: Session, recognition: ActiveSession, clock: Callable[[], float]
    ) -> list[list[FormattedWord]]:
        """Recognize the whole recording; return each channel's words. Raises: Refused."""
        self.begin(session)
        while (block := await self._decoded(self._recording.next_block())) is not None:
            recognition.push(session.samples(block, clock()))
            while session.backlog_s > IN_FLIGHT_S:
                await self._next_result()
        work, events = session.close(CloseReason.CLOSE_STREAM, clock())
        recognition.push(work)
        self.on_events(events, None)
        while not self._ended:
            await self._next_result()
        return self._words

    async def _decoded(self, result: Awaitable[T]) -> T:
        """Wait for the decoder. Raises: Refused, also if the upload has failed and its decoder was therefore ended."""
        try:
            decoded = await result
        except BadAudio:
            self._raise_failure()
            raise
        self._raise_failure()
        return decoded

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    async def _next_result(self) -> None:
        if self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._raise_failure()

    def _fail(self, error: Refused) -> None:
        self._error = error
        self._recording.kill()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
