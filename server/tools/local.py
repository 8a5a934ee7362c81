"""Recognition in this process: the sessions, engine and decoding of a server, without a socket.

Its messages are the frames that a server would send, so a recording gets the same text either way. Implements the
protocol `tutti_asr_client.files.transcriber.Transcriber`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from server.audio.raw import PlainCodec, PlainReader
from server.errors import BadParameter, CloseReason, RecognitionFailed, Refused
from server.models.loading import load_served
from server.operations.logs import take_request_id
from server.protocols.deepgram.endpoints import created_now
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import BIASING, parse_query
from server.recognition.active_session import ActiveSession
from server.recognition.events import Closed, Event, StepTiming, StreamBroken
from server.recognition.messages import EndOfAudio, Samples
from server.replica import Replica, build_replica
from server.settings import UPLOADS_A_PLACE, Settings
from tutti_asr_client.address import QueryValue, query_pairs
from tutti_asr_client.errors import ClientError
from tutti_asr_client.messages import Message, decode

AHEAD_S = 2.0  # audio queued in the engine for each recording: enough for a row in every batch


class NotRecognized(ClientError):
    """Recognition of one recording failed; or the query for all of them was refused."""


@asynccontextmanager
async def open_local(
    settings: Settings, sample_rate: int | None = None, *, live: bool = True, **query: QueryValue
) -> AsyncIterator[LocalTranscriber]:
    """Load the default model and run its engine inside the context; `query` has the parameters of /v1/listen.

    `sample_rate` in Hz is that of the audio; None: the model's. Without `live`, finals are those of recordings. The
    voice-activity model is loaded only if the settings or the query need it, because importing its runtime takes time.

    Raises: ModelError; NotRecognized if the query is not supported.
    """
    settings = settings.model_copy(update={"speakers": bool(query.get("diarize")), "voices": None})
    if settings.vad == "auto" and not query.get("vad_events"):
        settings = settings.model_copy(update={"vad": "off"})
    async with open_replica(settings) as replica:
        yield LocalTranscriber(replica, sample_rate, live=live, **query)


@asynccontextmanager
async def open_replica(settings: Settings) -> AsyncIterator[Replica]:
    """Load the default model and run its engine inside the context, without a socket. Raises: ModelError."""
    places = -(-settings.slots // UPLOADS_A_PLACE)
    own = {"max_streams": 1, "max_uploads": places, "model_aliases": {}}  # as uploads, without a latency objective
    settings = settings.of_default.model_copy(update=own)
    models, auxiliary = await asyncio.to_thread(load_served, settings)
    replica = build_replica(settings, models, auxiliary, time.perf_counter)
    await replica.models.start()
    try:
        yield replica
    finally:
        await asyncio.to_thread(replica.models.stop)


class LocalTranscriber:
    """Turns recordings into a server's messages; several can run concurrently and share batches."""

    def __init__(
        self, replica: Replica, sample_rate: int | None = None, *, live: bool = True, **query: QueryValue
    ) -> None:
        """Parse the query. Raises: NotRecognized if a server would refuse it, or if key terms would be ignored."""
        self._replica = replica
        self._model = replica.models.default
        self.sample_rate = sample_rate or self._model.config.sample_rate
        # as sent by the remote transcriber
        sent: dict[str, QueryValue] = {"encoding": "linear16", "sample_rate": self.sample_rate}
        sent |= {"interim_results": True, "step_results": True, **query}
        try:
            self._model.check_keyterms(sorted(name for name in BIASING & sent.keys() if sent[name]))
            request = parse_query(
                query_pairs(sent),
                replica.settings.max_channels,
                supports_keyterms=self._model.decoder.supports_bias,
                lenient_features=replica.settings.lenient_features,
                english=self._model.english(str(query["language"]) if query.get("language") else None),
                detects=self._model.facts.prompts is not None,
                speakers=replica.settings.speakers,
            )
            request = replace(request, live=live)
            self._request = request.with_own(replica.own_forms, written=self._model.facts.tokens.written)
            self._model.check(self._request)
        except BadParameter as error:
            raise NotRecognized(str(error)) from error
        biasing = sorted(BIASING & set(self._request.ignored))  # a server lists them in a header
        if biasing:
            raise NotRecognized(f"{biasing[0]}: not supported by greedy decoding; choose the beam decoder")

    async def stream(self, pcm: AsyncIterable[bytes]) -> AsyncGenerator[Message, None]:
        """Recognize one recording of little-endian int16 mono PCM. Raises: NotRecognized."""
        try:
            async for message in self._recognize(pcm):
                yield message
        except Refused as error:
            raise NotRecognized(str(error)) from error

    async def _recognize(self, pcm: AsyncIterable[bytes]) -> AsyncGenerator[Message, None]:
        model, request = self._model, self._request
        session = model.session(request, self._replica.limits)
        sink = FrameSink(Projector(request, 1, take_request_id(), created_now(), model.card))
        recognition = await model.recognizer.open(session, sink, background=True)
        async with aclosing(sink.frames(self._send(pcm, recognition, sink), recognition)) as frames:
            async for frame in frames:
                message = decode(frame)
                if message is not None:
                    yield message

    async def _send(self, pcm: AsyncIterable[bytes], recognition: ActiveSession, sink: FrameSink) -> None:
        session, clock = recognition.session, self._replica.clock
        reader = PlainReader(PlainCodec.S16, self.sample_rate)
        try:
            async for chunk in pcm:
                recognition.push(session.take(Samples(reader.read(chunk), clock())))
                while session.backlog_s > AHEAD_S and recognition.open:
                    await sink.progress()
            recognition.take(EndOfAudio(CloseReason.CLOSE_STREAM, clock()))
        except Exception as error:
            sink.fail(error)
            raise


class FrameSink:
    """Queue of frames between engine and reader, bounded by the results of `AHEAD_S` of audio."""

    def __init__(self, projector: Projector) -> None:
        self._projector = projector
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Queue the frames of a step's events."""
        for event in events:
            if isinstance(event, StreamBroken):
                self.fail(RecognitionFailed("recognition failed"))
                return
            frame = self._projector.frame(event, timing)
            if frame is not None:
                self._frames.append(frame)
            self._ended = self._ended or isinstance(event, Closed)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End with an error, after the queued frames."""
        self._error, self._ended = error, True
        self._changed.set()

    async def progress(self) -> None:
        """Wait for the next result."""
        self._changed.clear()
        await self._changed.wait()

    async def frames(
        self, sending: Coroutine[Any, Any, None], recognition: ActiveSession
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a recording that `sending` sends; then close it. Raises: the error that ended it."""
        sender = asyncio.create_task(sending)
        try:
            while self._frames or not self._ended:
                if self._frames:
                    yield self._frames.popleft()
                else:
                    await self.progress()
            if self._error is not None:
                raise self._error
            await sender
        finally:
            sender.cancel()
            await asyncio.wait({sender})
            recognition.close()
