"""Derive the finals of recorded receipts again from their audio, with the engine in this process, and compare them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from model.config import shipped_named
from server.audio.decoder import open_decoder
from server.errors import BadParameter, CloseReason, MediaError, RecognitionFailed
from server.models.service import ModelService
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import ListenRequest, parse_query
from server.protocols.deepgram.receipts import WRITTEN_FORMS, StreamReceipts, digests_of
from server.receipts.keys import ReceiptKeys
from server.receipts.receipt import FinalText, ReceiptChain, Setup
from server.receipts.recorded import BadReceipt, Recorded, read_recorded
from server.receipts.verification import Difference, Part, check_audio, check_recorded, compare_digests, compare_finals
from server.recognition.active_session import ActiveSession
from server.recognition.events import FinalReason
from server.recognition.messages import EndOfAudio, FlushText, Samples, StartAt
from server.recognition.session_options import Limits, finals_of
from server.replica import Replica
from server.settings import Settings
from server.text.own_forms import NO_OWN_FORMS
from server.tools.local import AHEAD_S, FrameSink, open_replica

CHUNK_S = 0.25
MAX_CHANNELS = 20  # of a query, whatever the settings here
MESSAGES = ".jsonl"  # suffix of recorded messages in a folder of streams
AT_ONCE = 8  # streams of a folder that are replayed together


@dataclass(frozen=True, slots=True)
class StoredStream:
    """The recorded messages of a stream, the name of their file, and its audio."""

    name: str
    recorded: Recorded
    audio: Path


def read_stored(messages: Path, audio: Path) -> StoredStream:
    """Read a file of messages. Raises: BadReceipt, OSError."""
    try:
        return StoredStream(messages.name, read_recorded(messages.read_text(encoding="utf-8-sig")), audio)
    except UnicodeDecodeError as error:
        raise BadReceipt(f"{messages}: not UTF-8 text; save it as UTF-8") from error
    except BadReceipt as error:
        raise BadReceipt(f"{messages}: {error}") from error


def stored_in(folder: Path) -> Iterator[StoredStream]:
    """Yield the streams of a folder: NAME.jsonl next to one file of audio, NAME.wav. Raises: BadReceipt, OSError."""
    for messages in sorted(folder.rglob(f"*{MESSAGES}")):
        audio = [path for path in messages.parent.iterdir() if path.stem == messages.stem and path.suffix != MESSAGES]
        if len(audio) != 1:
            raise BadReceipt(f"{messages}: {len(audio)} files of audio named {messages.stem}.*; there must be one")
        yield read_stored(messages, audio[0])


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings that need a model, a decoder or an engine of their own."""

    model: str
    precision: str
    decoder: str
    beams: int
    without_lm: bool
    vad: str

    @classmethod
    def of(cls, recorded: Recorded) -> Loaded:
        """Return those of a stream. Raises: BadReceipt."""
        setup = recorded.setup
        info, without_lm = setup.model, not recorded.first.digests.language_model
        return cls(info.name, info.precision, info.decoder, info.beams, without_lm, str(setup.settings.get("vad")))

    def settings(self, chosen: Settings) -> Settings:
        """Return the chosen settings, with those of the stream where none are chosen."""
        update: dict[str, Any] = {"vad": self.vad}
        if chosen.model is None:
            update["model"] = shipped_named(self.model)
        if chosen.precision == "auto":
            update["precision"] = self.precision
        if chosen.decoder == "auto" and self.decoder:
            update["decoder"] = self.decoder
        if "beams" not in chosen.model_fields_set and self.decoder == "beam":
            update["beams"] = self.beams
        if chosen.lm is None and self.without_lm and self.decoder == "beam":
            update["lm"] = "off"
        return chosen.model_copy(update=update)


class Replayer:
    """Replays streams; each set of models is loaded once."""

    def __init__(self, settings: Settings, keys: ReceiptKeys | None, *, may_lack_end: bool) -> None:
        """`keys` None: signatures are not checked. `may_lack_end`: as in `check_recorded`."""
        self._settings, self._keys, self._may_lack_end = settings, keys, may_lack_end
        self._replicas: dict[Loaded, Replica] = {}
        self._stack = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: Settings, keys: ReceiptKeys | None, *, may_lack_end: bool = False
    ) -> AsyncIterator[Replayer]:
        """Yield a replayer whose engines end with the context."""
        replayer = cls(settings, keys, may_lack_end=may_lack_end)
        async with replayer._stack:
            yield replayer

    async def each(self, streams: Iterable[StoredStream]) -> AsyncIterator[tuple[StoredStream, list[Difference]]]:
        """Yield streams in their order, with what differs. Raises: as `differences`."""
        rest = iter(streams)
        while group := [*islice(rest, AT_ONCE)]:
            for stream in group:
                await self._replica(Loaded.of(stream.recorded))  # so that no two load the same
            by_stream = await asyncio.gather(*(self.differences(stream.recorded, stream.audio) for stream in group))
            for stream, differences in zip(group, by_stream, strict=True):
                yield stream, differences

    async def differences(self, recorded: Recorded, audio: Path) -> list[Difference]:
        """Return what differs, the causes first. Raises: BadReceipt, ModelError, OSError, SettingsError."""
        differences = check_recorded(recorded, self._keys, may_lack_end=self._may_lack_end)
        setup = recorded.setup
        replica = await self._replica(Loaded.of(recorded))
        model = _model(setup, replica.models.default)
        own = replica.own_forms if WRITTEN_FORMS in setup.settings else NO_OWN_FORMS
        request = _request(setup, model).with_own(own, written=model.facts.tokens.written)
        digests = digests_of(model, request, setup)
        causes = compare_digests(recorded.first.digests, digests) + _forms_differ(setup, replica)
        assert request.form.sample_rate is not None, "of raw samples"
        samples = await asyncio.to_thread(read_samples, audio, request)
        causes += check_audio(recorded, samples, request.form.channels, request.form.sample_rate)
        if causes:
            return differences + causes  # other words would follow from them
        derived = await _Replay(replica, model, request, recorded).run(samples)
        return differences + compare_finals(recorded, derived)

    async def _replica(self, loaded: Loaded) -> Replica:
        if loaded not in self._replicas:
            settings = loaded.settings(self._settings)
            self._replicas[loaded] = await self._stack.enter_async_context(open_replica(settings))
        return self._replicas[loaded]


def _forms_differ(setup: Setup, replica: Replica) -> list[Difference]:
    """Compare the operator's own written forms with those of the stream; one without them is replayed without."""
    theirs, ours = setup.settings.get(WRITTEN_FORMS), replica.own_forms.digest
    if not theirs or theirs == ours:
        return []
    own = ours[:16] or "none (--written-forms)"
    return [Difference(Part.SETTING, f"written forms {own} here, {str(theirs)[:16]} in the receipt")]


def _model(setup: Setup, model: ModelService) -> ModelService:
    """Return a model with the finals of the stream's server for streams that do not ask. Raises: BadReceipt."""
    try:
        finals = finals_of(str(setup.settings["finals"]))
    except (BadParameter, KeyError) as error:
        raise BadReceipt(f"the stream cannot be replayed here: {error}") from error
    if finals not in {None, "fast"} and (finals, "") not in model.passes:
        raise BadReceipt(f"the stream cannot be replayed here: model {model.name!r} has no {finals} finals")
    return replace(model, finals=finals or model.finals)


def _request(setup: Setup, model: ModelService) -> ListenRequest:
    """Raises: BadReceipt."""
    supports_keyterms, english = model.decoder.supports_bias, model.english(dict(setup.query).get("language"))
    try:
        request = parse_query(
            setup.query,
            MAX_CHANNELS,
            supports_keyterms=supports_keyterms,
            lenient_features=True,
            english=english,
            detects=True,
        )
        model.check(request)
    except BadParameter as error:
        raise BadReceipt(f"the stream cannot be replayed here: {error}") from error
    return request


def read_samples(path: Path, request: ListenRequest) -> bytes:
    """Read a recording in the encoding of its stream, or as WAV, as interleaved 16-bit samples. Raises: BadReceipt."""
    decoder = open_decoder(request.form, request.form.sample_rate or 0, multichannel=request.form.channels > 1)
    try:
        parts = [decoder.feed(path.read_bytes(), float("inf"))]
        while decoder.holds:
            parts.append(decoder.feed(b"", float("inf")))
        parts.append(decoder.flush(float("inf")))
    except MediaError as error:
        raise BadReceipt(f"{path}: {error}") from error
    return np.concatenate(parts).astype("<i2").tobytes()


class _Replay:
    """One stream: its audio, and the flushes that its client asked for at their samples."""

    def __init__(self, replica: Replica, model: ModelService, request: ListenRequest, recorded: Recorded) -> None:
        self._clock, self._model, self._recorded = replica.clock, model, recorded
        self._session = model.session(request, _limits(recorded.setup, replica.limits))
        self._rate = self._session.options.sample_rate
        first = recorded.first
        chain = ReceiptChain(first.stream, first.created, recorded.setup, first.digests)
        receipts = StreamReceipts(chain, ReceiptKeys.new())
        projector = Projector(
            request, len(self._session.channels), first.stream, first.created, model.card, receipts=receipts
        )
        self._sink = FrameSink(projector)

    async def run(self, samples: bytes) -> Recorded:
        """Return the receipts of the replay."""
        recognition = await self._model.recognizer.open_in_background(self._session, self._sink)
        frames = self._sink.frames(self._send(samples, recognition), recognition)
        return Recorded.of_messages([json.loads(frame) async for frame in frames if b'"receipt":' in frame])

    async def _send(self, samples: bytes, recognition: ActiveSession) -> None:
        session, channels = self._session, self._session.options.channels
        audio = np.frombuffer(samples, "<i2").reshape(-1, channels)
        begin = at = self._recorded.first.audio.begin
        if begin:
            session.take(StartAt(begin / self._rate))
        try:
            for end, channel in self._stops():
                while at < end:
                    until = min(end, at + round(CHUNK_S * self._rate))
                    recognition.push(session.take(Samples(audio[at:until], self._clock())))
                    at = until
                    while session.backlog_s > AHEAD_S and recognition.open:
                        await self._sink.progress()
                if channel is not None:
                    recognition.take(FlushText(channel, self._clock()))
            reason = CloseReason(self._recorded.closed or CloseReason.CLIENT_GONE)
            recognition.take(EndOfAudio(reason, self._clock()))
        except Exception as error:
            self._sink.fail(error if isinstance(error, RecognitionFailed) else RecognitionFailed(str(error)))
            raise

    def _stops(self) -> Iterator[tuple[int, int | None]]:
        """Yield the samples up to which audio is sent, and the channel that is flushed there."""
        end = 0
        for entry in sorted(self._recorded.entries, key=lambda entry: entry.receipt.audio.end):
            final, end = entry.receipt.final, entry.receipt.audio.end
            if isinstance(final, FinalText) and final.reason == FinalReason.FINALIZE:
                yield end, final.channel
        yield end, None


def _limits(setup: Setup, ours: Limits) -> Limits:
    """Return the limits of the stream's server."""
    own: dict[str, Any] = {name: value for name, value in setup.settings.items() if hasattr(ours, name)}
    return replace(ours, **({"rest_s": None} | own))  # absent: the stream's server had no rest
