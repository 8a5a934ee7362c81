"""Turns of one speaker from recognized words and silence, for Deepgram's Flux protocol. Pure; time is audio time.

A turn begins with its voice, or with its first word, and ends after silence, after a timeout, or when the client ends
it. The score of an end of turn is `s / (s + HALF_SCORE_S)` after `s` seconds of silence. It grows with silence, is 0.5
after 0.3 s, 0.7 (the default threshold) after 0.7 s, and never reaches 1. It is not calibrated yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from model.ctc.words import Word

HALF_SCORE_S = 0.3  # silence whose score is 0.5; the default threshold then means 0.7 s
UPDATE_S = 0.25  # Source: Deepgram's page on the state machine of Flux
WORDLESS_S = 2.0  # from its voice on, after which a turn without a word ends
MAX_WORDS = 2_000  # of a turn: every update repeats all of them


class TurnState(Enum):
    """State of the speaker's turn."""

    NONE = "none"  # no turn is open
    SPEAKING = "speaking"
    AWAITING = "awaiting"  # an early end of turn was sent


class TurnKind(StrEnum):
    """Kind of a turn event; the values are those of the wire."""

    START = "StartOfTurn"
    UPDATE = "Update"
    EAGER = "EagerEndOfTurn"
    RESUMED = "TurnResumed"
    END = "EndOfTurn"


class Trigger(StrEnum):
    """Cause of an end of turn."""

    MODEL = "model"
    MANUAL = "manual"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class TurnRules:
    """Thresholds of the score, and the silence that ends a turn whatever the score.

    An `end_threshold` of 1 leaves only the timeout; without an `eager_threshold` no early end is sent.
    """

    end_threshold: float = 0.7
    eager_threshold: float | None = None
    timeout_s: float = 5.0

    @property
    def end_delay_s(self) -> float:
        """Silence that ends a turn."""
        return min(delay_of(self.end_threshold), self.timeout_s)

    @property
    def trigger(self) -> Trigger:
        """Cause of an end by silence: the timeout if it is shorter than the delay of the threshold."""
        return Trigger.TIMEOUT if self.timeout_s < delay_of(self.end_threshold) else Trigger.MODEL


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An event of turn `index`, whose audio is from `start_s` to `end_s`; `trigger` only at its end."""

    kind: TurnKind
    index: int
    start_s: float
    end_s: float
    words: tuple[Word, ...]
    score: float
    trigger: Trigger | None = None


def score_of(silence_s: float) -> float:
    """Return the score of an end of turn after this silence, from 0 to less than 1."""
    silence_s = max(silence_s, 0.0)
    return silence_s / (silence_s + HALF_SCORE_S)


def delay_of(score: float) -> float:
    """Return the silence after which the score is reached; infinite for 1."""
    return float("inf") if score >= 1.0 else score * HALF_SCORE_S / (1.0 - score)


class Turns:
    """Turn machine of one stream. Call `advance` with the words of each recognition event, in order."""

    def __init__(self, rules: TurnRules) -> None:
        self.rules = rules  # may be replaced at any time
        self.state = TurnState.NONE
        self._index = 0
        self._closed: list[Word] = []  # words of the turn that can no longer change
        self._eager: tuple[str, ...] = ()  # texts of the last early end
        self._start_s = 0.0
        self._sent_s = 0.0  # audio time of the last event

    def begin(self, start_s: float) -> list[TurnEvent]:
        """Begin a turn with its voice at `start_s`, unless one is open; its words come with `advance`."""
        if self.state is not TurnState.NONE:
            return []
        self.state, self._start_s = TurnState.SPEAKING, start_s
        return [self._event(TurnKind.START, max(start_s, self._sent_s), (), 0.0)]

    def advance(
        self, until_s: float, closed: Sequence[Word], open_words: Sequence[Word] = (), *, end: Trigger | None = None
    ) -> list[TurnEvent]:
        """Return the events of audio up to `until_s`.

        `closed` are new words that can no longer change, `open_words` all that still can. `end` ends an open turn; with
        it there are no open words.
        """
        self._closed += closed
        words = (*self._closed, *open_words)
        if self.state is TurnState.NONE and not words:
            return []
        score = score_of(until_s - words[-1].end_s) if words else 0.0
        events = self._changed(until_s, words, score)
        if end is None and not open_words:
            end = self._end_by_silence(until_s, words)
        if end is not None:
            events.append(self._event(TurnKind.END, until_s, words, score, end))
            self._reset()
            return events
        if not events and self._is_eager(words, score):
            self.state, self._eager = TurnState.AWAITING, _texts(words)
            events.append(self._event(TurnKind.EAGER, until_s, words, score))
        if not events and until_s - self._sent_s >= UPDATE_S:
            events.append(self._event(TurnKind.UPDATE, until_s, words, score))
        return events

    def _changed(self, until_s: float, words: tuple[Word, ...], score: float) -> list[TurnEvent]:
        """Begin a turn, or continue one whose words differ from those of its early end."""
        if self.state is TurnState.NONE:
            self.state, self._start_s = TurnState.SPEAKING, min(words[0].start_s, until_s)
            return [self._event(TurnKind.START, until_s, words, score)]
        if self.state is TurnState.AWAITING and _texts(words) != self._eager:
            self.state = TurnState.SPEAKING
            return [self._event(TurnKind.RESUMED, until_s, words, score)]
        return []

    def _end_by_silence(self, until_s: float, words: Sequence[Word]) -> Trigger | None:
        if len(words) >= MAX_WORDS:
            return Trigger.TIMEOUT
        if not words:
            return Trigger.TIMEOUT if until_s - self._start_s >= WORDLESS_S else None
        return self.rules.trigger if until_s - words[-1].end_s >= self.rules.end_delay_s else None

    def _is_eager(self, words: Sequence[Word], score: float) -> bool:
        threshold = self.rules.eager_threshold
        return self.state is TurnState.SPEAKING and threshold is not None and bool(words) and score >= threshold

    def _event(
        self, kind: TurnKind, until_s: float, words: tuple[Word, ...], score: float, trigger: Trigger | None = None
    ) -> TurnEvent:
        self._sent_s = until_s
        return TurnEvent(kind, self._index, self._start_s, until_s, words, score, trigger)

    def _reset(self) -> None:
        self.state = TurnState.NONE
        self._index += 1
        self._closed, self._eager = [], ()


def _texts(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.text for word in words)
