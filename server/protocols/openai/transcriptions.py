"""`POST /v1/audio/transcriptions`: a form with a recording in, one of five formats or server-sent events out."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import msgspec
import structlog
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from msgspec import UNSET, UnsetType

from model.ctc.words import continued, languages_of
from server.access.keys import Credentials
from server.audio.formats import audio_form
from server.errors import REFUSALS, BadAudio, ClientGone, Refused, TooLarge, TooSlow, UnexpectedFailure
from server.models.selection import language_name
from server.models.service import ModelService
from server.operations.logs import take_request_id
from server.protocols.features import ignored_header, named
from server.protocols.openai.endpoint import render_error
from server.protocols.openai.form import AnswerFormat, TranscriptionForm, parse_form
from server.protocols.openai.messages import Usage, error_body
from server.protocols.openai.speakers import (
    SpeakerNames,
    check_reference,
    diarized,
    known_speakers,
    name_of,
    named_cues,
    named_passages,
    text_of,
)
from server.protocols.uploads import Recognized, Recordings
from server.recognition.keyterms.keyterms import NO_KEYTERMS, Keyterms, rare_terms
from server.recognition.request import Request as Asked
from server.recognition.segments.speaker_rules import SpeakerRules
from server.recognition.session_options import SessionOptions
from server.replica import Replica
from server.text.formatting import FormattedWord, Style
from server.text.subtitles import SubtitleFormat, cues_by_speaker, subtitles


class PlainAnswer(msgspec.Struct):
    """Answer for `response_format=json`."""

    text: str
    usage: Usage
    warnings: list[str] | UnsetType = UNSET  # extension: about the file


class SegmentOut(msgspec.Struct):
    """A segment; tokens and compression ratio have no meaning for this model, but clients expect the fields."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    speaker: str | UnsetType = UNSET  # extension: the channel, where several were separated


class WordOut(msgspec.Struct):
    """A word as displayed."""

    word: str
    start: float
    end: float
    speaker: str | UnsetType = UNSET  # as in a segment


class VerboseAnswer(msgspec.Struct):
    """Answer for `response_format=verbose_json`."""

    task: str
    language: str
    duration: float
    text: str
    usage: Usage
    segments: list[SegmentOut] | UnsetType = UNSET
    words: list[WordOut] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


def answer(
    form: AnswerFormat,
    channels: Sequence[Sequence[FormattedWord]],
    duration_s: float,
    granularities: Sequence[str],
    language: str = "english",
    *,
    warnings: Sequence[str] = (),
    name: SpeakerNames | None = None,
) -> tuple[bytes, str]:
    """Return the body and its media type for the words of each channel.

    `language` is the English name of the words' language; `name`: of the speakers, where they are distinguished.
    """
    name = name or SpeakerNames()
    match form:
        case AnswerFormat.JSON:
            usage = Usage(round(duration_s, 3))
            return msgspec.json.encode(
                PlainAnswer(text_of(channels), usage, list(warnings) or UNSET)
            ), "application/json"
        case AnswerFormat.VERBOSE_JSON:
            verbose = _verbose(channels, duration_s, granularities, language)
            verbose.warnings = list(warnings) or UNSET
            return msgspec.json.encode(verbose), "application/json"
        case AnswerFormat.DIARIZED_JSON:
            return msgspec.json.encode(diarized(channels[0], duration_s, name, warnings)), "application/json"
        case AnswerFormat.TEXT:
            return (text_of(channels) + "\n").encode(), "text/plain; charset=utf-8"
        case AnswerFormat.SRT:
            return _subtitles(SubtitleFormat.SRT, channels, name), "application/x-subrip; charset=utf-8"
        case AnswerFormat.VTT:
            return _subtitles(SubtitleFormat.VTT, channels, name), "text/vtt; charset=utf-8"


def _subtitles(form: SubtitleFormat, channels: Sequence[Sequence[FormattedWord]], name: SpeakerNames) -> bytes:
    cues = named_cues(channels) if len(channels) > 1 else cues_by_speaker(form, channels[0], name.spoken)
    return subtitles(form, cues).encode()


def _verbose(
    channels: Sequence[Sequence[FormattedWord]], duration_s: float, granularities: Sequence[str], language: str
) -> VerboseAnswer:
    with_segments = "segment" in granularities or "word" not in granularities
    return VerboseAnswer(
        task="transcribe",
        language=language,
        duration=round(duration_s, 3),
        text=text_of(channels),
        usage=Usage(round(duration_s, 3)),
        segments=[_segment(i, *part) for i, part in enumerate(named_passages(channels))] if with_segments else UNSET,
        words=_words(channels) if "word" in granularities else UNSET,
    )


def _segment(index: int, speaker: str, words: Sequence[FormattedWord]) -> SegmentOut:
    text = text_of([words])
    logprobs = [math.log(max(word.word.confidence, 1e-6)) for word in words]
    return SegmentOut(
        id=index,
        seek=0,
        start=round(words[0].word.start_s, 3),
        end=round(words[-1].word.end_s, 3),
        text=text,
        tokens=[],
        temperature=0.0,
        avg_logprob=round(sum(logprobs) / len(logprobs), 4),
        compression_ratio=round(len(text) / len(zlib.compress(text.encode())), 4),
        no_speech_prob=0.0,
        speaker=speaker or UNSET,
    )


def _words(channels: Sequence[Sequence[FormattedWord]]) -> list[WordOut]:
    """Return the words of all channels in the order of time."""
    words_out = [
        WordOut(
            word.text, round(word.word.start_s, 3), round(word.word.end_s, 3), name_of(number, len(channels)) or UNSET
        )
        for number, words in enumerate(channels)
        for word in words
    ]
    return sorted(words_out, key=lambda word: word.start) if len(channels) > 1 else words_out


STYLE = Style(punctuate=True, numerals=True)  # clients of this interface display the text
_encode = msgspec.json.Encoder().encode
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.uploads")


class TextDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta"):
    """Event with more text."""

    delta: str


class TextDone(PlainAnswer, tag_field="type", tag="transcript.text.done"):
    """Event with the whole text."""


class Transcriptions:
    """The upload endpoint of one replica."""

    def __init__(self, replica: Replica, recordings: Recordings) -> None:
        self._replica = replica
        self._recordings = recordings

    async def create(self, request: Request) -> Response:
        """Recognize a recording: `file` in a multipart form, as in OpenAI's interface.

        `response_format` is json, text, srt, verbose_json, diarized_json or vtt; `stream=true` sends the text
        while recognizing.
        """
        request_id, guard = take_request_id(), self._replica.guard
        headers = {"x-request-id": request_id}
        try:
            await guard.enter(request, Credentials.read(request.headers.get("authorization"), ()))
            with ExitStack() as held:
                held.enter_context(self._recordings.place(request))
                form = await self._form(request)
                language = self._replica.models.names.one_language(*_spoken(form))
                model, wanted, ignored = await self._accepted(request, form, language)
                headers |= ignored_header(ignored)
                recognize = partial(
                    self._recordings.recognize,
                    request,
                    form.body,
                    model,
                    wanted,
                    protocol="openai",
                    request_id=request_id,
                )
                if form.stream:
                    events = _begin(recognize, held.pop_all(), request_id)
                    return StreamingResponse(events, headers=headers, media_type="text/event-stream")
                recognized = await recognize()
                names = await self._names(request, form, model, recognized, request_id)
        except (BadAudio, TooLarge, TooSlow) as error:
            return render_error(guard.refuse(_of_file(error)), request_id)
        except Refused as error:
            return render_error(guard.refuse(error), request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's code for a client that disconnected
        body, kind = await asyncio.to_thread(  # four hours of words take 0.16 s
            answer,
            form.answer,
            recognized.words,
            recognized.audio_s,
            form.granularities,
            _language(model, language, [word for words in recognized.words for word in words]),
            warnings=recognized.warnings,
            name=names,
        )
        headers |= {"x-warnings": "; ".join(recognized.warnings)} if recognized.warnings else {}
        return Response(body, headers=headers, media_type=kind)

    async def _names(
        self, request: Request, form: TranscriptionForm, model: ModelService, recognized: Recognized, request_id: str
    ) -> SpeakerNames:
        """Return the names of the speakers: those of the known voices whose references are theirs. Raises: Refused."""
        if not form.references or not recognized.voices:
            return SpeakerNames()
        options = SessionOptions(speakers=SpeakerRules(maximum=1, at_end=True))
        alone = Asked(form=audio_form(None, None), options=options, live=False)
        vectors = {}
        for name, body in form.references.items():
            reference = await self._recordings.recognize(
                request, body, model, alone, protocol="openai", request_id=request_id
            )
            vectors[name] = check_reference(name, reference.audio_s, reference.voices[0])
        return SpeakerNames(known_speakers(recognized.voices[0], vectors))

    async def _form(self, request: Request) -> TranscriptionForm:
        body, kind = await self._recordings.read(request), request.headers.get("content-type", "")
        settings, query = self._replica.settings, request.query_params.multi_items()
        lenient, speakers = settings.lenient_features, settings.speakers
        return await asyncio.to_thread(partial(parse_form, kind, body, query, lenient=lenient, speakers=speakers))

    async def _accepted(
        self, request: Request, form: TranscriptionForm, language: str | None
    ) -> tuple[ModelService, Asked, tuple[str, ...]]:
        """Return the model of a form, what it asks for, and the names of ignored fields; build its key terms.

        Raises: BadParameter, ServerNotReady, TooManyOpenings.
        """
        terms = tuple(filter(None, (*form.keywords, form.prompt)))
        self._replica.terms.check(self._replica.guard.owner(request), terms)
        model = await self._replica.models.obtain(form.model, language)
        biasing = [name for name in ("keywords", "prompt") if getattr(form, name)]
        model.check_keyterms(biasing)
        biased = model.decoder.supports_bias
        keyterms = Keyterms.of_request("keywords", form.keywords) if biased else NO_KEYTERMS
        if biased and form.prompt:
            keyterms = keyterms.in_context(rare_terms(form.prompt, model.decoder))
        ignored = form.ignored if biased else named({*form.ignored, *biasing})
        options = replace(form.options, keyterms=keyterms, language=language)
        style = replace(STYLE, english=model.english(language))
        wanted = Asked(form=audio_form(None, None), options=options, style=style, live=False)
        return model, await self._replica.accept(request, model, wanted, terms=terms), ignored


def _begin(recognize: Callable[..., Awaitable[Recognized]], held: ExitStack, request_id: str) -> AsyncIterator[bytes]:
    """Start recognition as a task, and return its server-sent events.

    The upload place is released when recognition ends, even if the events are not read: recognition itself detects
    that the client has disconnected.
    """
    segments: asyncio.Queue[Sequence[FormattedWord] | None] = asyncio.Queue()

    def ended(done: asyncio.Future[Recognized]) -> None:
        held.close()
        segments.put_nowait(None)
        if not done.cancelled():
            done.exception()  # marks it as retrieved, even if the events are not read

    running = asyncio.ensure_future(recognize(on_segment=segments.put_nowait))
    running.add_done_callback(ended)
    return _events(running, segments, request_id)


async def _events(
    running: asyncio.Future[Recognized], segments: asyncio.Queue[Sequence[FormattedWord] | None], request_id: str
) -> AsyncIterator[bytes]:
    before = ""
    try:
        while (words := await segments.get()) is not None:
            if words:
                text = text_of([words])
                yield _event(_encode(TextDelta(continued(before, text))))
                before = text
        yield _last_event(running)
        if not isinstance(error := running.exception(), Refused | ClientGone | None):
            _log.error("upload failed", request_id=request_id, exc_info=error)
    finally:
        running.cancel()


def _spoken(form: TranscriptionForm) -> tuple[str, str | None, tuple[str, ...]]:
    """Return the arguments of `one_language`: parameter name, model, and the languages that the form names."""
    return "languages" if len(form.languages) > 1 else "language", form.model, form.languages


def _language(model: ModelService, requested: str | None, words: Sequence[FormattedWord]) -> str:
    """Return the English name of the language that the model detected, else of its own, or of the requested one."""
    languages = languages_of(formatted.word for formatted in words)[:1] or model.languages
    return language_name(languages[0] if len(languages) == 1 else requested or next(iter(languages), "unknown"))


def _last_event(done: asyncio.Future[Recognized]) -> bytes:
    """Return the event with the whole text, or with the error: the HTTP status was already sent."""
    error = done.exception()
    if isinstance(error, ClientGone):
        return b""
    if error is not None:
        refused = error if isinstance(error, Refused) else UnexpectedFailure()
        about = _of_file(refused) if isinstance(refused, BadAudio | TooLarge) else refused
        return _event(error_body(REFUSALS[type(refused)].status, str(about)))
    recognized = done.result()
    return _event(
        _encode(
            TextDone(text_of(recognized.words), Usage(round(recognized.audio_s, 3)), list(recognized.warnings) or UNSET)
        )
    )


def _of_file(error: Refused) -> Refused:
    """Return the error prefixed with the field concerned."""
    return type(error)(f"file: {error}")


def _event(payload: bytes) -> bytes:
    return b"data: %b\n\n" % payload
