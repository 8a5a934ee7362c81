"""Subtitles in SubRip and WebVTT: cues of at most two lines, on screen long enough to be seen. Pure.

A cue begins after a pause; a passage that is too long for one cue is halved until its parts fit. Widths are in columns:
an ideograph takes two. `server/web/subtitles.js` has the same rules.

Source of the limits: the usual ones in subtitling guides. Source of the formats: the WebVTT specification of W3C, and
SubRip files as OpenAI's service sends them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise, zip_longest

import msgspec

from model.ctc.words import joined
from server.text.formatting import FormattedWord
from server.text.speaker_turns import Words, parts, speaker_of

PAUSE_S = 0.4  # between cues: the shortest silence that ends an utterance in live streams
LONGEST_S = 7.0
SHORTEST_MS = 500
LINE_COLUMNS = 42
LABEL_COLUMNS = 20  # of a speaker's name, so that words fit next to it
_WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\U00020000-\U0003fffd]"
)


class SubtitleFormat(StrEnum):
    """Formats of subtitles."""

    SRT = "srt"
    VTT = "vtt"


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle and its times in milliseconds."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    voice: str = ""  # name of the speaker, in WebVTT as a voice span


def columns(text: str) -> int:
    """Return the width of a text in columns."""
    return len(text) + len(_WIDE.findall(text))


def passages(words: Words, label: str = "") -> list[Words]:
    """Divide words at pauses, and what does not fit into one cue with `label` in front into halves."""
    begins = [at for at in range(1, len(words)) if words[at].word.start_s - words[at - 1].word.end_s >= PAUSE_S]
    bounds = [0, *begins, len(words)] if words else []
    runs = [words[begin:end] for begin, end in pairwise(bounds)]
    return [part for run in runs for part in _halves(run, label)]


def _halves(words: Words, label: str) -> Iterator[Words]:
    if len(words) == 1 or _fits(words, label):
        yield words
        return
    width, best = sum(columns(word.text) for word in words), (float("inf"), 1)
    left = 0
    for at in range(1, len(words)):
        left += columns(words[at - 1].text)
        best = min(best, (abs(2 * left - width), at))
    yield from _halves(words[: best[1]], label)
    yield from _halves(words[best[1] :], label)


def _fits(words: Words, label: str) -> bool:
    return words[-1].word.end_s - words[0].word.start_s <= LONGEST_S and _lines(words, label) is not None


def _lines(words: Words, label: str) -> tuple[str, ...] | None:
    """Return one line, else two of the most equal widths; None if more are needed."""
    texts = [word.text for word in words]
    whole = label + joined(texts)
    if (width := columns(whole)) <= LINE_COLUMNS:
        return (whole,)
    if width > 2 * LINE_COLUMNS + 1:
        return None
    pairs = [((label + joined(texts[:at])).strip(), joined(texts[at:])) for at in range(not label, len(texts))]
    wider = [max(map(columns, pair)) for pair in pairs]
    return pairs[wider.index(min(wider))] if wider and min(wider) <= LINE_COLUMNS else None


def cues(words: Words, label: str = "") -> list[Cue]:
    """Return the cues of one speaker, in order and without overlap; `label` stands in front of each, as "Caller: "."""
    made: list[Cue] = []
    cue_words = _long_enough(passages([piece for word in words for piece in _pieces(word)], label), label)
    for part, after in zip_longest(cue_words, cue_words[1:]):
        start_ms = max(round(part[0].word.start_s * 1e3), made[-1].end_ms if made else 0)
        end_s = part[-1].word.end_s
        end_ms = round((end_s if after is None else min(end_s, after[0].word.start_s)) * 1e3)
        made.append(Cue(start_ms, max(end_ms, start_ms + SHORTEST_MS), _lines(part, label) or ()))
    return made


def speaker_name(speaker: int) -> str:
    """Return the name of a speaker, numbered from 0, where no other is known."""
    return f"Speaker {speaker + 1}"


def cues_by_speaker(form: SubtitleFormat, words: Words, name: Callable[[int], str]) -> list[Cue]:
    """Return cues that name their speakers: in front of the words, or in WebVTT as voice spans."""
    made: list[Cue] = []
    for part in parts(words):
        speaker = speaker_of(part)
        if speaker is None:
            made += cues(part)
        elif form is SubtitleFormat.VTT:
            made += [replace(cue, voice=name(speaker)) for cue in cues(part)]
        else:
            made += cues(part, f"{name(speaker)}: ")
    return made


def _pieces(word: FormattedWord) -> Iterator[FormattedWord]:
    """Cut a word that is longer than a line into lines, each with its share of the time."""
    cuts, width = [0], 0
    for at, character in enumerate(word.text):
        width += columns(character)
        if width > LINE_COLUMNS:
            cuts.append(at)
            width = columns(character)
    if len(cuts) == 1:
        yield word
        return
    begin_s, each_s = word.word.start_s, (word.word.end_s - word.word.start_s) / len(word.text)
    for first, end in zip(cuts, [*cuts[1:], len(word.text)], strict=True):
        times = msgspec.structs.replace(word.word, start_s=begin_s + first * each_s, end_s=begin_s + end * each_s)
        yield FormattedWord(times, word.text[first:end].strip())


def _long_enough(passed: list[Words], label: str) -> list[Words]:
    """Join a part that the next one follows within `SHORTEST_MS` to a neighbor, where they fit into one cue."""
    cues: list[Words] = []
    for part, after in zip_longest(passed, passed[1:]):
        alone = after is not None and _short(part, after) and not _fits([*part, *after], label)
        if cues and (_short(cues[-1], part) or alone) and _fits([*cues[-1], *part], label):
            cues[-1] = [*cues[-1], *part]
        else:
            cues.append(part)
    return cues


def _short(part: Words, after: Words) -> bool:
    return (after[0].word.start_s - part[0].word.start_s) * 1e3 < SHORTEST_MS


def subtitles(form: SubtitleFormat, cues: Iterable[Cue]) -> str:
    """Return the file of cues, which may overlap in time: those of several speakers."""
    ordered = sorted(cues, key=lambda cue: cue.start_ms)
    if form is SubtitleFormat.SRT:
        return "".join(f"{number}\n{_shown(cue, ',', cue.lines)}" for number, cue in enumerate(ordered, start=1))
    lines_of_cues = (
        (cue, [_span(cue) * (not at) + _escaped(line) for at, line in enumerate(cue.lines)]) for cue in ordered
    )
    return "WEBVTT\n\n" + "".join(_shown(cue, ".", lines) for cue, lines in lines_of_cues)


def _escaped(line: str) -> str:
    return html.escape(line, quote=False)


def _span(cue: Cue) -> str:
    return f"<v {_escaped(cue.voice)}>" if cue.voice else ""


def _shown(cue: Cue, point: str, lines: Iterable[str]) -> str:
    return "\n".join([f"{_clock(cue.start_ms, point)} --> {_clock(cue.end_ms, point)}", *lines, "", ""])


def _clock(ms: int, point: str) -> str:
    minutes, rest = divmod(ms, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1_000:02d}{point}{rest % 1_000:03d}"
