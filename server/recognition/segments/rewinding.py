"""Decodes finals of one channel again: selects the parts of the stream, and the words to send. No clock, no I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from model.ctc.bias import Bias
from model.ctc.rewind import KEPT_S, RewindDecoder, RewindState
from model.ctc.words import Word
from server.recognition.events import Correction
from server.recognition.segments.partials import placed
from server.recognition.segments.speech_gate import Levels

MAX_PARTS = 64  # most parts that are kept
SENTENCE_S = 0.3  # shortest pause between two finals: words that follow sooner continue a sentence
OPENING_WORDS = 16  # most words before a correction that are sent with it


@dataclass(frozen=True, slots=True)
class Part:
    """A decoder state between two flushes, its place in stream time, and the levels of its audio."""

    state: RewindState
    base_s: float
    end_s: float
    levels: Levels


@dataclass(frozen=True, slots=True)
class Rewind:
    """A request: decode the last `seconds` again, once `after_steps` steps are answered."""

    after_steps: int
    seconds: float
    bias: Bias


class Rewinding:
    """The earlier decoder states of a channel, and the requests that wait until earlier audio is decoded."""

    def __init__(self, decoder: RewindDecoder) -> None:
        self._decoder = decoder
        self._parts: deque[Part] = deque(maxlen=MAX_PARTS)
        self.waiting: deque[Rewind] = deque()

    def due(self, steps_answered: int) -> bool:
        """Whether the oldest request's audio is decoded."""
        return bool(self.waiting) and self.waiting[0].after_steps <= steps_answered

    def flushed(self, part: Part) -> None:
        """Keep a state that has ended, and drop old ones."""
        self._parts.append(part)
        while self._parts[0].end_s < part.end_s - KEPT_S:
            self._parts.popleft()

    def correction(self, channel: int, open_part: Part, now_s: float, asked: Rewind) -> Correction:
        """Return the words of the finals in the last seconds before `now_s`; the last final ends with `open_part`."""
        until_s = open_part.end_s
        since_s, start_s = now_s - asked.seconds, until_s
        words: list[Word] = []
        before: tuple[Word, ...] = ()
        for part in (*self._parts, open_part):
            found = (
                self._decoder.rewind(part.state, since_s - part.base_s, asked.bias) if part.end_s > since_s else None
            )
            if found is None:
                continue
            if start_s == until_s and not words:
                start_s = min(until_s, max(part.base_s + found.start_s, 0.0))
                before = _same_sentence(found.before, found.words)
            said = [word for word in found.words if part.levels.has_speech(word)]
            words += placed(said, part.base_s, start_s, part.end_s)
        return Correction(channel, start_s, until_s - start_s, tuple(words), before)


def _same_sentence(before: tuple[Word, ...], words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the preceding words that belong to the same sentence."""
    if not before or not words or words[0].start_s - before[-1].end_s >= SENTENCE_S:
        return ()
    return before[-OPENING_WORDS:]
