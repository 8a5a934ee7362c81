"""Turns of one speaker from recognized words and silence, for Deepgram's Flux protocol. Pure; time is audio time.

A turn begins with voice or with its first word. It ends after silence, after a timeout, or when the client ends it. If
the stream is forked in pauses, silence is measured in the audio, and the early end and the end have the words of a
fork. The stream outputs the same words later by the model's delay; they then belong to the ended turn. Without forks,
silence is measured up to where words are known, so both ends are later by that delay, and the audio must be silent as
long by its level: a word may have been said whose text is not known yet. The score of an end of turn is that of
`model.turn_ends.score`: it grows with silence, and with the answer of a turn model if there is one. After words that
end inside a number, silence counts only from `server.text.unfinished.wait_s` on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum, StrEnum

import msgspec

from model.ctc.words import Word
from model.turn_ends.score import delay_of, score_of
from server.recognition.events import ForkWords
from server.recognition.segments.endpointing import ROUNDING, ScoredEnd, is_silent
from server.text.acknowledgements import may_acknowledge, only_acknowledges
from server.text.redaction_kinds import NumberLanguage
from server.text.unfinished import LAST_WORDS, wait_s

UPDATE_S = 0.24  # three steps of 80 ms, one of 240. Source of 0.25: Deepgram's page on the state machine of Flux
UPDATED_WORDS_PER_S = 400  # an update repeats the whole turn: with more words than this allows, updates are rarer
WORDLESS_S = 2.0  # time from the start of voice after which a turn without a word ends
MAX_WORDS = 2_000  # words of a turn: every update repeats all of them
HELD_S = 0.8  # of words that may be found to acknowledge by their sound once they are over
MIN_FORK_S = 0.1  # silence before a fork: a shorter pause may be inside a word


class TurnState(Enum):
    """State of the speaker's turn."""

    NONE = "none"  # no turn is open
    HELD = "held"  # voice, or words that may only acknowledge: its start was not sent
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
    """Thresholds of the score, and the silence that ends a turn regardless of the score.

    An `end_threshold` of 1 leaves only the timeout; without an `eager_threshold` no early end is sent. With
    `holds_backchannel`, a turn that only acknowledges has no events: it starts with the first other word.
    """

    end_threshold: float = 0.7
    eager_threshold: float | None = None
    timeout_s: float = 5.0
    holds_backchannel: bool = False

    def end_delay_s(self, answer: float | None = None, waits_s: float = 0.0) -> float:
        """Return the silence that ends a turn, after this answer of the turn model and words that wait."""
        return min(delay_of(self.end_threshold, answer) + waits_s, self.timeout_s)

    @property
    def fork_after_s(self) -> float:
        """Silence after which the words of a turn are needed: for its early end, or else for its end."""
        first = self.end_threshold if self.eager_threshold is None else self.eager_threshold
        return max(min(delay_of(first), self.timeout_s), MIN_FORK_S)

    @property
    def scored_end(self) -> ScoredEnd:
        """Rule by which the recognizer ends a segment: that of the turn."""
        return ScoredEnd(self.end_threshold, self.timeout_s)

    def trigger(self, answer: float | None = None, waits_s: float = 0.0) -> Trigger:
        """Return the cause of an end by silence: the timeout if it is shorter than the delay of the threshold."""
        return Trigger.TIMEOUT if self.timeout_s < delay_of(self.end_threshold, answer) + waits_s else Trigger.MODEL


class TurnEvent(msgspec.Struct, frozen=True):
    """An event of turn `index`, whose audio is from `start_s` to `end_s`; `trigger` only at its end."""

    kind: TurnKind
    index: int
    start_s: float
    end_s: float
    words: tuple[Word, ...]
    score: float
    trigger: Trigger | None = None


@dataclass(slots=True)
class _Fork:
    """Words of a turn up to `end_s`: from a flush there, and as the stream itself would show them at `known_s`."""

    end_s: float
    words: tuple[Word, ...]
    running: tuple[Word, ...]
    known_s: float  # the stream can be compared once decoded up to here
    stands: bool = True  # False once speech has resumed, or the stream has other words
    checked: bool = False

    def differing(self, own: Sequence[Word], *, closed: bool) -> int:
        """Return the number of words in which the stream itself differs; call once it is decoded up to `known_s`."""
        self.checked = True
        return _differing(_texts(self.words if closed else self.running), _texts(own))


class Turns:
    """Turn machine of one stream. Call `update_silence`, `advance` and `fork` with the recognition events, in order."""

    def __init__(
        self,
        rules: TurnRules,
        *,
        delay_s: float = 0.0,
        numbers: NumberLanguage | None = None,
        forks: bool = False,
        marks: bool = False,
    ) -> None:
        """`delay_s`: audio after a word that the model has already received when it outputs the word.

        `numbers`: language whose unfinished numbers delay the end; None: none do. `forks`: the stream is forked in
        pauses. `marks`: whether the decoder marks acknowledgements by their sound, which it does once their segment is
        over.
        """
        self.rules = rules  # may be replaced at any time
        self.answer: float | None = None  # of the turn model, about the present silence
        self.state = TurnState.NONE
        self.differing = 0  # words of ended turns that the stream itself recognized differently
        self._delay_s, self._numbers, self._marks = delay_s, numbers, marks
        self._index = 0
        self._closed: list[Word] = []  # words of the turn that can no longer change
        self._eager: tuple[str, ...] = ()  # texts of the last early end
        self._start_s = 0.0
        self._sent_s = 0.0  # audio time of the last event
        self._silence_s = 0.0  # silence at the end of the audio, by its level
        self._forks, self._unforked = forks, False  # whether no fork has followed the last speech yet
        self._fork_due = False  # whether a fork follows the events of the present step
        self._spoken_s = 0.0  # audio time at which speech last resumed, by level
        self._own: tuple[Word, ...] = ()  # words of the turn from the stream itself, as far as decoded
        self._last: tuple[tuple[Word, ...], float] = (), 0.0  # words, and how long a turn that ends in them waits
        self._fork: _Fork | None = None  # the turn's last fork
        self._ended_s = -math.inf  # words that begin before this belong to an ended turn
        self._ended: _Fork | None = None  # of the last ended turn, until the stream is decoded up to it
        self._old: tuple[Word, ...] = ()  # closed words of that turn from the stream itself

    def update_silence(self, until_s: float, silence_s: float) -> list[TurnEvent]:
        """Take the silence at the end of the audio; return the events of resumed speech."""
        back = silence_s < self._silence_s
        self._silence_s = silence_s
        self._unforked = self._unforked or back or not silence_s
        self._fork_due = self._forks and self._unforked and silence_s >= self.rules.fork_after_s
        self._unforked = self._unforked and not self._fork_due
        if not back:
            return []
        self._spoken_s = until_s
        if self._fork is not None:
            self._fork.stands = False
        return self._resumed(until_s, self._shown(until_s - self._delay_s))

    def begin(self, start_s: float) -> list[TurnEvent]:
        """Begin a turn with voice at `start_s`, unless one is open; `advance` supplies the words.

        Voice that began in an ended turn does not begin another turn.
        """
        if self.state is not TurnState.NONE or start_s < self._ended_s:
            return []
        self.state, self._start_s = TurnState.HELD, start_s
        return self._changed(max(start_s, self._sent_s), ())

    def advance(
        self, until_s: float, closed: Sequence[Word], open_words: Sequence[Word] = (), *, end: Trigger | None = None
    ) -> list[TurnEvent]:
        """Return the events of audio up to `until_s`.

        `closed` are new words that can no longer change, `open_words` all that still can. `end` ends an open turn; with
        it there are no open words.
        """
        decoded_s = until_s if end is not None else until_s - self._delay_s
        self._compare(decoded_s, closed, open_words)
        self._closed += self._new(closed)
        opened = self._new(open_words)
        self._own = (*self._closed, *opened)
        self._check_fork(decoded_s, closed=not opened)
        words = self._own if end is not None else self._shown(decoded_s)
        if self.state is TurnState.NONE and not words:
            return []
        events = self._changed(until_s, words)
        if end is None:
            end = self._end_by_silence(until_s, words, closed=not opened)
        if end is not None:
            return events + self._end(until_s, words, end)
        if not events and self._is_eager(decoded_s, words):
            events.append(self._early_end(until_s, words))
        if self.state is not TurnState.HELD and not events and until_s - self._sent_s >= update_s(len(words)):
            events.append(self._event(TurnKind.UPDATE, until_s, words))
        return events

    def fork(self, end_s: float, found: ForkWords) -> list[TurnEvent]:
        """Take the words of the open segment from a fork at `end_s`, which is also the time of the last events."""
        self._fork_due = False
        turn = (*self._closed, *self._new(found.words))
        if not turn:
            return []
        self._fork = _Fork(end_s, turn, (*self._closed, *self._new(found.running)), found.known_s)
        events = self._changed(end_s, turn)
        end = self._end_by_silence(end_s, turn, closed=False)
        if end is not None:
            return events + self._end(end_s, turn, end)
        if self._is_eager(end_s, turn):
            events.append(self._early_end(end_s, turn))
        return events

    def _new(self, words: Sequence[Word]) -> list[Word]:
        """Return the words that belong to no ended turn."""
        return [word for word in words if word.start_s >= self._ended_s]

    def _compare(self, decoded_s: float, closed: Sequence[Word], open_words: Sequence[Word]) -> None:
        """Count the words of the ended turn that the stream recognized differently, once it is decoded that far."""
        ended = self._ended
        if ended is None:
            return
        self._old += tuple(word for word in closed if word.start_s < self._ended_s)
        if decoded_s >= ended.known_s - ROUNDING:
            opened = [word for word in open_words if word.start_s < self._ended_s]
            self.differing += ended.differing((*self._old, *opened), closed=not opened)
            self._ended, self._old = None, ()

    def _check_fork(self, decoded_s: float, *, closed: bool) -> None:
        """Drop the fork if the stream, once decoded that far, has other words, or later begins a word after it."""
        fork = self._fork
        if fork is None or decoded_s < fork.known_s - ROUNDING:
            return
        if not fork.checked:
            differing = fork.differing(self._own, closed=closed)
            self.differing += differing
            fork.stands = fork.stands and not differing
        elif self._own and self._own[-1].start_s >= fork.end_s:
            fork.stands = False

    def _shown(self, decoded_s: float) -> tuple[Word, ...]:
        """Return the words of the turn: those of the fork if it stands or the stream is not decoded that far yet."""
        fork = self._fork
        return fork.words if fork is not None and (fork.stands or decoded_s < fork.known_s - ROUNDING) else self._own

    def _changed(self, until_s: float, words: tuple[Word, ...]) -> list[TurnEvent]:
        """Begin a turn, or continue one whose words differ from those of its early end."""
        if self.state is TurnState.NONE:
            self.state, self._start_s = TurnState.HELD, min(words[0].start_s, until_s)
        if self.state is TurnState.HELD:
            held = self.rules.holds_backchannel and (self._is_unsure(words) or may_acknowledge(words))
            return [] if held else [self._start(until_s, words)]
        changed = self.state is TurnState.AWAITING and _texts(words) != self._eager
        return self._resumed(until_s, words) if changed else []

    def _is_unsure(self, words: tuple[Word, ...]) -> bool:
        """Whether there are no words, or few open ones whose sound may turn out to be that of an acknowledgement."""
        if not words:
            return True
        fork = self._fork
        is_over = len(words) == len(self._closed) or (fork is not None and words is fork.words)
        return self._marks and not is_over and words[-1].end_s - words[0].start_s <= HELD_S

    def _start(self, until_s: float, words: tuple[Word, ...]) -> TurnEvent:
        self.state = TurnState.SPEAKING
        return self._event(TurnKind.START, until_s, words)

    def _resumed(self, until_s: float, words: tuple[Word, ...]) -> list[TurnEvent]:
        """Withdraw an early end that stands."""
        if self.state is not TurnState.AWAITING:
            return []
        self.state = TurnState.SPEAKING
        return [self._event(TurnKind.RESUMED, until_s, words)]

    def _early_end(self, until_s: float, words: tuple[Word, ...]) -> TurnEvent:
        self.state, self._eager = TurnState.AWAITING, _texts(words)
        return self._event(TurnKind.EAGER, until_s, words)

    def _end_by_silence(self, until_s: float, words: Sequence[Word], *, closed: bool) -> Trigger | None:
        """Return the cause of an end: silence of the audio after a fork, or after words that are all `closed`."""
        if closed and len(words) >= MAX_WORDS:
            return Trigger.TIMEOUT
        if not words:
            return Trigger.TIMEOUT if until_s - self._start_s >= WORDLESS_S else None
        known_s = until_s - self._delay_s - words[-1].end_s

        def is_over(delay_s: float) -> bool:
            forked = self._fork is not None and self._fork.stands and self._silence_s >= delay_s - ROUNDING
            return forked or (closed and self._is_silent(delay_s, known_s))

        if not is_over(self.rules.end_delay_s(self.answer)):
            return None
        waits_s = self._waits_s(words)
        is_end = is_over(self.rules.end_delay_s(self.answer, waits_s))
        return self.rules.trigger(self.answer, waits_s) if is_end else None

    def _waits_s(self, words: Sequence[Word]) -> float:
        """Return how much longer than otherwise the turn waits for the rest of a number or name."""
        if self._numbers is None:
            return 0.0
        last = tuple(words[-LAST_WORDS:])
        if last != self._last[0]:
            self._last = last, wait_s(_texts(last), self._numbers)
        return self._last[1]

    def _is_eager(self, decoded_s: float, words: Sequence[Word]) -> bool:
        """Whether the early end is due: by the silence of the audio after a fork, else by that of the words."""
        threshold = self.rules.eager_threshold
        if self.state is not TurnState.SPEAKING or threshold is None or not words:
            return False
        needed_s = delay_of(threshold, self.answer) + self._waits_s(words)
        if self._fork is not None and self._fork.stands:
            return self._silence_s >= needed_s - ROUNDING
        return self._is_silent(needed_s, decoded_s - max(words[-1].end_s, self._spoken_s))

    def _is_silent(self, needed_s: float, known_s: float) -> bool:
        """Whether words and audio are silent for `needed_s`; `known_s`: from the last word to where words are known.

        Not while the words of a fork are due: an end has these.
        """
        silent = not self._fork_due and is_silent(needed_s, level_s=self._silence_s, known_s=known_s)
        return silent and known_s >= needed_s - ROUNDING

    def _event(
        self, kind: TurnKind, until_s: float, words: tuple[Word, ...], trigger: Trigger | None = None
    ) -> TurnEvent:
        self._sent_s = until_s
        if words:
            self._start_s = min(self._start_s, words[0].start_s)  # the voice may be detected after the word began
        known_s = until_s - self._delay_s - words[-1].end_s if words else 0.0
        score = score_of(max(self._silence_s, known_s) - self._waits_s(words), self.answer)
        return TurnEvent(kind, self._index, self._start_s, until_s, words, score, trigger)

    def _end(self, until_s: float, words: tuple[Word, ...], trigger: Trigger) -> list[TurnEvent]:
        """End the turn; one that is held only starts, and ends, if it has words that do not only acknowledge."""
        events: list[TurnEvent] = []
        if self.state is TurnState.HELD and words and not only_acknowledges(words):
            events.append(self._start(until_s, words))
        if self.state is not TurnState.HELD:
            events.append(self._event(TurnKind.END, until_s, words, trigger))
            self._index += 1
        fork = self._fork
        if fork is not None and fork.stands and words is fork.words:
            self._ended_s, self._ended = fork.end_s, None if fork.checked else fork
            self._old = tuple(self._closed)
        self.state = TurnState.NONE
        self._closed, self._eager, self._own, self._fork = [], (), (), None
        return events


def update_s(words: int) -> float:
    """Return the audio time from one event of a turn of this many words to the next update."""
    return max(UPDATE_S, words / UPDATED_WORDS_PER_S)


def _texts(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple([word.text for word in words])


def _differing(ours: Sequence[str], others: Sequence[str]) -> int:
    """Return the number of our words that the others lack at their place, and of others that we lack."""
    blocks = SequenceMatcher(None, ours, others, autojunk=False).get_matching_blocks()
    return max(len(ours), len(others)) - sum(block.size for block in blocks)
