"""Endpoint rules and voice activity of one channel, in seconds of audio. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.ctc.words import Word
from model.turn_ends.score import delay_of
from server.recognition.saved_state import SavedVoice
from server.recognition.steps import WindowTag
from server.text.redaction_kinds import NumberLanguage
from server.text.unfinished import LAST_WORDS, wait_s

OVERTIME_S = 5.0  # beyond the maximum length, for a segment whose only word is unfinished
QUIET_S = 0.2  # shortest silence by level that ends anything
NOISY_S = 1.0  # silence after the last word that ends in a loud room, whose level is never silent
ROUNDING = 1e-6  # rounding error of sums of seconds


def is_silent(needed_s: float, *, level_s: float, known_s: float) -> bool:
    """Whether the audio was silent for `needed_s`, also where its words are not known yet.

    `level_s`: silence at the end of the audio, by its level; `known_s`: from the last word to where words are known.
    """
    return level_s >= max(needed_s, QUIET_S) - ROUNDING or known_s >= max(needed_s, NOISY_S) - ROUNDING


@dataclass(frozen=True, slots=True)
class ScoredEnd:
    """An utterance ends once the score of an end of turn reaches a threshold, or after a timeout whatever the score."""

    threshold: float
    timeout_s: float

    def delay_s(self, answer: float | None) -> float:
        """Return the silence in the audio that ends it, given this answer of the turn model."""
        return min(delay_of(self.threshold, answer), self.timeout_s)


SMART_END = ScoredEnd(0.9, 3.0)  # of `endpointing=smart`


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """Endpoint rules; None switches one off. `voiceless_s`: silence by the voice-activity model, None without one."""

    endpoint_s: float | None  # silence after words that closes a segment
    silence_s: float | None  # silence without a word that closes a segment
    quiet_s: float  # silence after which new voice counts as a new start of speech
    utterance_gap_s: float | None
    max_utterance_s: float
    partials: bool
    every_step: bool
    tell_stable: bool  # send a partial when a word became stable, even if no word changed
    settled_only: bool  # partials end before a word that may still change
    partial_interval_s: float  # of audio, at least, from one partial of a segment to the next
    scored: ScoredEnd | None = None  # ends utterances, but not before `endpoint_s`
    lookahead_s: float = 0.0  # the model's: audio after that up to which words are known
    numbers: NumberLanguage | None = None  # whose unfinished numbers delay a scored end

    def ends_words(
        self, known_s: float, level_s: float, voiceless_s: float | None = None, answer: float | None = None
    ) -> bool:
        """Whether the silence after words ends the utterance and thus the segment.

        `known_s`, `level_s`: as in `is_silent`; `answer`: the turn model's about this silence.
        """
        needed_s = self.endpoint_s
        if needed_s is None or known_s < needed_s or (voiceless_s is not None and voiceless_s < needed_s):
            return False
        scored_s = 0.0 if self.scored is None else self.scored.delay_s(answer)
        level_s = min(level_s, known_s + self.lookahead_s)  # a word may be too quiet for the level
        return is_silent(max(needed_s, scored_s), level_s=level_s, known_s=known_s)

    def waits_s(self, words: Sequence[Word]) -> float:
        """Return how much longer than otherwise a scored end waits after these words."""
        if self.scored is None or self.numbers is None:
            return 0.0
        return wait_s([word.text for word in words[-LAST_WORDS:]], self.numbers)

    def ends_silence(self, silent_s: float, voiceless_s: float | None) -> bool:
        """Whether this silence closes a segment that has no words: recognizer and voice-activity model agree."""
        needed_s = self.silence_s
        return needed_s is not None and silent_s >= needed_s and (voiceless_s is None or voiceless_s >= needed_s)


# Source: silero-vad's own iterator: speech begins above the threshold and ends 0.15 below it.
SPEECH_ABOVE = 0.5
SILENCE_BELOW = 0.35


@dataclass(frozen=True, slots=True)
class VoiceRules:
    """Use of a voice-activity model: the samples of its window, and whether endpoints also need its silence."""

    window_samples: int
    ends_speech: bool = True


class VoiceActivity:
    """Speech and silence as a function of audio time."""

    def __init__(self, rules: VoiceRules, sample_rate: int) -> None:
        self.ends_speech = rules.ends_speech
        self._window_samples = rules.window_samples
        self._window_s = rules.window_samples / sample_rate
        self._ahead: deque[tuple[int, Sequence[float]]] = deque()  # (end sample, probabilities), not yet counted
        self._known = 0  # samples whose probability is known
        self.speaking = False
        self._silent_windows = 0

    @property
    def silence_s(self) -> float:
        """Length of the silence up to the sample last followed to."""
        return self._silent_windows * self._window_s

    def saved(self) -> SavedVoice:
        """Return a snapshot, after `follow` and before windows of later steps count."""
        return SavedVoice(self.speaking, self._silent_windows)

    def restore(self, saved: SavedVoice) -> None:
        """Continue from a snapshot."""
        self.speaking, self._silent_windows = saved.speaking, saved.silent_windows

    def take(self, row: WindowTag, result: NDArray[np.float32]) -> None:
        """Take the probabilities of speech in the windows of a row, (W,), of which only the first may be windows."""
        self._ahead.append((row.end_sample, result[: row.windows].tolist()))
        self._known = row.end_sample

    def known_to(self, end_sample: int) -> None:
        """Record that the windows up to this sample were counted before a snapshot."""
        self._known = end_sample

    def covers(self, end_sample: int) -> bool:
        """Return whether the probabilities of all whole windows up to this sample are known."""
        return end_sample - self._known < self._window_samples

    def follow(self, end_sample: int) -> float | None:
        """Count the windows up to this sample; return the seconds since speech began in them, or None if it did not."""
        began: float | None = None
        while self._ahead and self._ahead[0][0] <= end_sample:
            end, probabilities = self._ahead.popleft()
            for after, probability in enumerate(probabilities, start=1 - len(probabilities)):
                self._silent_windows = self._silent_windows + 1 if probability < SILENCE_BELOW else 0
                if probability > SPEECH_ABOVE and not self.speaking:
                    self.speaking = True
                    before = end_sample - end + (1 - after) * self._window_samples
                    began = before / self._window_samples * self._window_s
        return began

    def quiet(self) -> None:
        """End the speech: the next window above the threshold begins new speech."""
        self.speaking = False
