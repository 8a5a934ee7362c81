"""Words of a segment by two systems: our search, and an encoder-decoder network that writes a text.

The network makes fewer errors in whole sentences, but invents words where it has little audio or an accent that it does
not know. It is sure of what it knows: so its text is taken if the mean log-probability of its symbols is high enough,
less so for longer audio. Its words get our times, by an alignment, and keep its capitals and marks. Numbers that it
writes in digits are ours, because digits do not say how they were said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model.ctc.alignment import aligned, partners_of
from model.ctc.bias import Bias
from model.ctc.words import Word
from model.text.spelled import MARKS

SHORTEST_S = 1.5  # of audio whose text may be taken
LEAST_LOG_PROB = -0.2
PER_SECOND, MOST_SECONDS = 0.05, 5.0
"""A text is taken if its log-probability plus `PER_SECOND` for each of at most `MOST_SECONDS` seconds is above
`LEAST_LOG_PROB`; chosen on part A of the development set (model/LOG.md)."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Words as they are said, and the mean log-probability of the symbols that they were written in.

    `written`: each word with capitals and the mark after it. `numbers`: places of words that were written in digits, so
    that it is not known how they were said.
    """

    words: tuple[str, ...]
    written: tuple[str, ...]
    numbers: frozenset[int]
    log_prob: float


class Transcriber(Protocol):
    """A network that writes the text of samples; callable on any thread."""

    @property
    def sample_rate(self) -> int:
        """Of the samples, Hz."""

    @property
    def longest_s(self) -> float:
        """Most seconds that it reads in one call."""

    @property
    def digest(self) -> str:
        """Digest of its weights."""

    def warm_up(self) -> None:
        """Load and compile everything."""

    def transcribe(self, pcm: NDArray[np.int16]) -> Transcript | None:
        """Return the words of samples (S,); None without a usable text."""


def combined(
    search: Callable[[], Sequence[Word]],
    first: Sequence[Word],
    audio: tuple[NDArray[np.int16], float],
    bias: Bias,
    transcriber: Transcriber,
) -> tuple[Word, ...]:
    """Return the network's words with our times where it is sure, else those of `search`, which costs time.

    `first`: words of the first pass, whose times are enough if the network writes neither numbers nor key terms.
    `audio`: samples (S,) and the time of the first one. Audio beyond what the network reads in one call is divided in
    the longest pauses between our words. Our words stay where the network left out a key term that they have.
    """
    pcm, begin_s = audio
    rate = transcriber.sample_rate
    searched = cache(search)
    has_terms = any(weight > 0 for _, weight in bias.phrases)
    result: list[Word] = []
    parts = _parts(first, begin_s, begin_s + len(pcm) / rate, transcriber.longest_s)
    for number, (part, from_s, to_s) in enumerate(parts):
        within = -math.inf if number == 0 else from_s, math.inf if number == len(parts) - 1 else to_s
        transcript = None
        if part and SHORTEST_S < to_s - from_s <= transcriber.longest_s:
            transcript = transcriber.transcribe(pcm[round((from_s - begin_s) * rate) : round((to_s - begin_s) * rate)])
        if transcript is None or not transcript.words or not is_sure(transcript.log_prob, to_s - from_s):
            result += _words_within(searched(), *within)
            continue
        ours = _words_within(searched(), *within) if transcript.numbers or has_terms else part
        if not ours or _lacks_terms(transcript.words, ours, bias):
            result += ours
        else:
            confidence = math.exp(transcript.log_prob)
            texts, written = _with_our_numbers(transcript, [word.text for word in ours])
            result += aligned(texts, ours, begin_s=from_s, end_s=to_s, confidence=confidence, written=written)
    return tuple(result)


def _words_within(words: Sequence[Word], from_s: float, to_s: float) -> Sequence[Word]:
    """Return the words whose middle is within a time."""
    return [word for word in words if from_s <= (word.start_s + word.end_s) / 2 < to_s]


def _lacks_terms(theirs: Sequence[str], ours: Sequence[Word], bias: Bias) -> bool:
    """Whether our words have a key term that the network's lack."""
    left, right = (f" {' '.join(texts)} " for texts in ([word.text for word in ours], theirs))
    terms = [f" {phrase} " for phrase, weight in bias.phrases if weight > 0]
    return any(term in left and term not in right for term in terms)


def _with_our_numbers(transcript: Transcript, ours: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the network's words with ours for its numbers, because "47192" may be five digits; then as written."""
    partners = partners_of(transcript.words, ours)
    texts: list[str] = []
    written: list[str] = []
    at, count = 0, len(transcript.words)
    while at < count:
        if at not in transcript.numbers:
            texts.append(transcript.words[at])
            written.append(transcript.written[at])
            at += 1
            continue
        end = next((later for later in range(at, count) if later not in transcript.numbers), count)
        before = max((one for one in partners[:at] if one is not None), default=-1)
        after = next((one for one in partners[end:] if one is not None), len(ours))
        numbers = ours[before + 1 : after] or transcript.words[at:end]
        last = transcript.written[end - 1]
        texts += numbers
        written += [*numbers[:-1], numbers[-1] + last[len(last.rstrip(MARKS)) :]]
        at = end
    return texts, written


def is_sure(log_prob: float, seconds: float) -> bool:
    """Whether a text with this mean log-probability is taken for audio of this length."""
    return log_prob + PER_SECOND * min(seconds, MOST_SECONDS) > LEAST_LOG_PROB


def _parts(
    words: Sequence[Word], begin_s: float, end_s: float, longest_s: float
) -> list[tuple[Sequence[Word], float, float]]:
    """Divide words and their audio in the longest pauses until no part is longer than `longest_s`, or has one word."""
    if end_s - begin_s <= longest_s or len(words) < 2:
        return [(words, begin_s, end_s)]
    pauses = [after.start_s - before.end_s for before, after in pairwise(words)]
    cut = 1 + max(range(len(pauses)), key=pauses.__getitem__)
    middle_s = (words[cut - 1].end_s + words[cut].start_s) / 2
    return [
        *_parts(words[:cut], begin_s, middle_s, longest_s),
        *_parts(words[cut:], middle_s, end_s, longest_s),
    ]
