"""Answers of `/v1/audio/transcriptions`: words to JSON, text or subtitles. Pure.

Source: the types of the `openai` package 3.51.0; the WebVTT and SubRip formats as OpenAI's service sends them.
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

PAUSE_S = 0.4  # between segments: the shortest silence that ends an utterance in live streams
LONGEST_S = 7.0  # of a segment. Source: the longest display time in subtitling guides
LONGEST_CHARACTERS = 84  # two lines of 42. Source: the usual limit in subtitling guides


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


def segments(words: Sequence[FormattedWord]) -> list[Sequence[FormattedWord]]:
    """Split words into segments: at pauses, and where a subtitle would become too long."""
    cut: list[Sequence[FormattedWord]] = []
    begin = 0
    for at in range(1, len(words) + 1):
        if at == len(words) or _begins_segment(words[begin:at], words[at]):
            cut.append(words[begin:at])
            begin = at
    return cut


def _begins_segment(before: Sequence[FormattedWord], word: FormattedWord) -> bool:
    first, last = before[0].word, before[-1].word
    if word.word.start_s - last.end_s >= PAUSE_S or word.word.end_s - first.start_s > LONGEST_S:
        return True
    return sum(len(w.text) + 1 for w in before) + len(word.text) > LONGEST_CHARACTERS


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
            return _subtitles(words, ",", numbered=True).encode(), "application/x-subrip; charset=utf-8"
        case AnswerFormat.VTT:
            return ("WEBVTT\n\n" + _subtitles(words, ".", numbered=False)).encode(), "text/vtt; charset=utf-8"


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
        segments=[_segment(i, part) for i, part in enumerate(segments(words))] if with_segments else UNSET,
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


def _subtitles(words: Sequence[FormattedWord], point: str, *, numbered: bool) -> str:
    lines: list[str] = []
    for number, part in enumerate(segments(words), start=1):
        begin, end = _clock(part[0].word.start_s, point), _clock(part[-1].word.end_s, point)
        lines += [str(number)] if numbered else []
        lines += [f"{begin} --> {end}", text_of(part), ""]
    return "\n".join(lines) + "\n" if lines else ""


def _clock(seconds: float, point: str) -> str:
    whole_ms = round(seconds * 1e3)
    hours, rest = divmod(whole_ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1_000:02d}{point}{rest % 1_000:03d}"
