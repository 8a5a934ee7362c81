"""Speech gate: accepts words and starts of speech only where the audio level varies as it does in speech.

A recognizer also finds symbols in noise, tones and digital silence, sometimes with full confidence. Speech alternates
between loud and quiet within a second, by 6 dB at least; steady hum or hiss does not, however loud it is. So the gate
needs no estimate of noise floor or speech level, and treats quiet and loud recordings alike.

Barks and clatter vary as speech does, and a recognizer is sure of no word in them: so the words of a segment count
from the step on in which it is sure enough of one.

Levels are measured in a band around 1.2 kHz. A constant offset has no energy there, slow fluctuations of pink noise
have little, and voiced speech exceeds white noise of the same loudness. Levels are integers computed from the samples
of one step, so they do not depend on the batch, the processor or message boundaries. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from copy import copy
from decimal import Decimal

import msgspec
import numpy as np
from numpy.typing import NDArray

from model.audio.levels import band_levels
from model.ctc.words import Word
from model.description import ModelDescription
from server.audio.pcm import PCM
from server.recognition.saved_state import SavedGate

# Source: model/LOG.md, "2026-11-27: the gate listens to one band (kept)".
HALF_PERIOD_S = 0.000_375  # of the band's center: a level is the energy of the differences between sums over this time
RISE_DB = 6  # least difference between the quiet and the loud levels around a word
CONTEXT_S = 1.0  # audio before a word that is evaluated with it
LEVEL_S = 0.02  # audio per level
LOUDEST = 3  # the loud level is the highest that this many levels reach: a click is shorter
QUIET_SHARE = 10  # one level in ten lies at or below the quiet one
SILENT_DB = -3  # mean square relative to one unit: anything quieter is digital silence and is ignored
LEVELS = 120  # steps of 1 dB above it


class Levels(msgspec.Struct, frozen=True, gc=False):
    """Levels of a range of audio in dB above digital silence, which is 0; `first` is the index of the first level."""

    values: bytes | bytearray
    first: int
    rate: float  # levels a second
    lead_s: float  # silence before the audio
    delay_s: float  # audio after a word that the model has always received when it outputs the word
    doubts: bool  # False: every word counts

    def has_speech(self, word: Word) -> bool:
        """Whether a word, timed from the start of the decoder state, was spoken."""
        if not self.doubts:
            return True
        begin = int((word.start_s - CONTEXT_S + self.lead_s) * self.rate) - self.first
        end = int((word.end_s + self.delay_s + self.lead_s) * self.rate) - self.first
        around = sorted(self.values[max(0, begin) : max(0, end)].replace(b"\0", b""))
        return len(around) >= LOUDEST and around[-LOUDEST] - around[len(around) // QUIET_SHARE] >= RISE_DB


class SpeechGate:
    """Owns the levels of a channel's open segment and of the audio just before it, and the decisions on its words."""

    def __init__(self, config: ModelDescription, keep_s: float = 0.0) -> None:
        """`keep_s`: how long the levels of taken words are kept, for `frozen`."""
        self._keep_s = CONTEXT_S + keep_s
        step_s = config.step_samples / config.sample_rate
        self._per_step = max(1, round(step_s / LEVEL_S))
        self._rate, self._lead_s = self._per_step / step_s, config.lead_samples / config.sample_rate
        self._delay_s = config.delay_frames * config.frame_s - self._lead_s
        self._half = round(HALF_PERIOD_S * config.sample_rate)
        self._limits = level_limits(config.step_samples // self._per_step)
        self._values = bytearray()  # levels of all steps sent, from level `_first` of the decoder state on
        self._first = 0
        self._doubts = config.doubts_steady_audio
        self._answered = 0  # levels of the decoder state's steps that are decoded
        self._words: tuple[Word, ...] = ()  # words of the last decision
        self._verdicts: list[bool] = []
        self._least = config.least_confidence
        self.confident = not self._least  # one word of the open segment was

    def sent(self, step: PCM) -> None:
        """Take a step (S,) that is sent to the engine."""
        if self._doubts:
            self._values += band_levels(step, self._per_step, self._half, self._limits)

    def answered(self) -> None:
        """Record that the next step was decoded."""
        if self._doubts:
            self._answered += self._per_step

    def speech(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        """Return the words of the open segment that were spoken; times count from the start of the decoder state."""
        kept = min(len(words), len(self._words))
        while words[:kept] != self._words[:kept]:
            kept -= 1  # usually only the last word has changed
        if kept < len(words):
            judge = self._levels(self._values)
            self._verdicts[kept:] = [judge.has_speech(word) for word in words[kept:]]
        else:
            del self._verdicts[kept:]
        self._words = words
        spoken = words
        if not all(self._verdicts):
            spoken = tuple(word for word, said in zip(words, self._verdicts, strict=True) if said)
        if not self.confident:
            self.confident = any(word.confidence >= self._least for word in spoken)
        return spoken if self.confident else ()

    def said(self, count: int) -> int:
        """Return how many of the first `count` words of the last decision were spoken."""
        return sum(self._verdicts[:count]) if self.confident else 0

    def frozen(self) -> Levels:
        """Return the levels decoded so far, for words of a second pass."""
        return self._levels(bytes(self._values[: self._answered - self._first]))

    def taken(self, until_s: float, *, all_words: bool) -> None:
        """Drop the levels of words that end before `until_s`, in the decoder's time; with all words a segment ends."""
        self._forget_words()
        if all_words:
            self.confident = not self._least
        self._drop(int((until_s - self._keep_s + self._lead_s) * self._rate))

    def restart(self) -> None:
        """Start again with a restarted decoder state, whose first step is the next one."""
        self._forget_words()
        self.confident = not self._least
        self._drop(self._answered)
        self._first = self._answered = 0

    def saved(self) -> SavedGate:
        """Return the state after the decoded steps."""
        return SavedGate(self._first, bytes(self._values[: self._answered - self._first]), self.confident)

    def copy(self) -> SpeechGate:
        """Return an independent gate with the decoded steps only; unanswered steps are left out."""
        twin = copy(self)
        twin.restore(self.saved())
        return twin

    def restore(self, saved: SavedGate) -> None:
        """Continue from what `saved` returned."""
        self._forget_words()
        self._values, self._first = bytearray(saved.levels), saved.first
        self._answered, self.confident = saved.first + len(saved.levels), saved.confident

    def _levels(self, values: bytes | bytearray) -> Levels:
        return Levels(values, self._first, self._rate, self._lead_s, self._delay_s, self._doubts)

    def _forget_words(self) -> None:
        self._words, self._verdicts = (), []

    def _drop(self, until: int) -> None:
        count = min(until, self._answered) - self._first
        if count > 0:
            del self._values[:count]
            self._first += count


@functools.cache
def level_limits(samples: int) -> NDArray[np.float64]:
    """Return the least energy of each level from 1 on, for levels of this many samples; integers, equal on all
    machines.
    """
    ratios: Sequence[Decimal] = [Decimal(10) ** (Decimal(SILENT_DB + level) / 10) for level in range(LEVELS)]
    return np.array([int(ratio * samples) + 1 for ratio in ratios], np.float64)
