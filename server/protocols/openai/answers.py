"""Answers of `/v1/audio/transcriptions`: words to JSON, text or subtitles. Pure.

Source: the types of the `openai` package 3.51.0.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from model.ctc.words import joined
from server.protocols.openai.messages import Usage
from server.text.formatting import FormattedWord
from server.text.subtitles import SubtitleFormat, cues, passages, subtitles


class AnswerFormat(StrEnum):
    """Values of `response_format`."""

    JSON = "json"
    TEXT = "text"
    SRT = "srt"
    VERBOSE_JSON = "verbose_json"
    VTT = "vtt"


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


class WordOut(msgspec.Struct):
    """A word as displayed."""

    word: str
    start: float
    end: float


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


def text_of(words: Sequence[FormattedWord]) -> str:
    """Join words to a text."""
    return joined(word.text for word in words)


def answer(
    form: AnswerFormat,
    words: Sequence[FormattedWord],
    duration_s: float,
    granularities: Sequence[str],
    language: str = "english",
    *,
    warnings: Sequence[str] = (),
) -> tuple[bytes, str]:
    """Return the body and its media type; `language` is the English name of the words' language."""
    match form:
        case AnswerFormat.JSON:
            usage = Usage(round(duration_s, 3))
            return msgspec.json.encode(PlainAnswer(text_of(words), usage, list(warnings) or UNSET)), "application/json"
        case AnswerFormat.VERBOSE_JSON:
            verbose = _verbose(words, duration_s, granularities, language)
            verbose.warnings = list(warnings) or UNSET
            return msgspec.json.encode(verbose), "application/json"
        case AnswerFormat.TEXT:
            return (text_of(words) + "\n").encode(), "text/plain; charset=utf-8"
        case AnswerFormat.SRT:
            return subtitles(SubtitleFormat.SRT, cues(words)).encode(), "application/x-subrip; charset=utf-8"
        case AnswerFormat.VTT:
            return subtitles(SubtitleFormat.VTT, cues(words)).encode(), "text/vtt; charset=utf-8"


def _verbose(
    words: Sequence[FormattedWord], duration_s: float, granularities: Sequence[str], language: str
) -> VerboseAnswer:
    with_segments = "segment" in granularities or "word" not in granularities
    return VerboseAnswer(
        task="transcribe",
        language=language,
        duration=round(duration_s, 3),
        text=text_of(words),
        usage=Usage(round(duration_s, 3)),
        segments=[_segment(i, part) for i, part in enumerate(passages(words))] if with_segments else UNSET,
        words=[_word(word) for word in words] if "word" in granularities else UNSET,
    )


def _segment(index: int, words: Sequence[FormattedWord]) -> SegmentOut:
    text = text_of(words)
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
    )


def _word(word: FormattedWord) -> WordOut:
    return WordOut(word.text, round(word.word.start_s, 3), round(word.word.end_s, 3))
