"""A decoder whose finished segments are read by Whisper; everything else is that of the decoder that it wraps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from model.ctc.alignment import aligned
from model.ctc.beam_state import SearchDecoder, SearchedState
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import (
    PCM,
    Agreeing,
    ChecksTerms,
    Decoder,
    FrameAudio,
    LogProbs,
    RatesWords,
    SecondPass,
    digest_of,
)
from model.ctc.words import Word
from model.description import ModelDescription
from model.text.normalization import comparable
from model.text.spelled import tokens_of
from model.whisper import ENGLISH, SAMPLE_RATE, Whisper
from server.audio.pcm import Resampler
from server.recognition.events import Fallback
from server.recognition.whisper.timed_pass import Unusable

LEAD_S = 2.0  # of audio before the first word of the first pass, which may have missed one
REPEATS = 2.4  # above it a text repeats itself. Source: Whisper's threshold for decoding again


@dataclass(slots=True, eq=False)
class WhisperState(SearchedState):
    """Decoder state of one stream: that of the first pass, and where its open segment begins."""

    bias: Bias
    taken: int = 0  # frame at which the open text begins


class WhisperDecoder(SearchDecoder):
    """A `Decoder` that returns the words of the first pass, and whose second pass is Whisper's text with our times.

    Whisper has read audio when it was loaded, so only the first pass is warmed up.
    """

    def __init__(self, first: Decoder, whisper: Whisper, language: str, config: ModelDescription, name: str) -> None:
        """`language` is one that the Whisper model has; `name`: its file, for the digest."""
        super().__init__(first)
        self._whisper, self._language, self._name = whisper, language, name
        self._rate = config.sample_rate
        self._english = language.partition("-")[0].lower() == ENGLISH
        self._lead = round(LEAD_S / config.frame_s)

    @property
    def reads_audio(self) -> bool:
        """True: Whisper reads the segment's audio."""
        return True

    @property
    def digest(self) -> str:
        """Digest of the first pass, and the name of the Whisper model, whose arithmetic differs between machines."""
        return digest_of("whisper", self.search.digest, self._name, self._language)

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> WhisperState:
        """Return a new state that ignores the first `skip_frames` frames."""
        return WhisperState(self.search.start(skip_frames, bias), bias)

    def set_bias(self, state: WhisperState, bias: Bias) -> None:
        """Replace the stream's key terms: of the first pass from the next frame on, of Whisper from this segment on."""
        state.bias = bias
        super().set_bias(state, bias)

    def advance(self, states: Sequence[WhisperState], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames, row b into `states[b]`."""
        self.search.advance([state.first for state in states], log_probs)

    def copy(self, state: WhisperState) -> WhisperState:
        """Return an independent copy of a state."""
        return replace(state, first=self.search.copy(state.first))

    def take(self, state: WhisperState, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the open segment by the first pass."""
        words: tuple[Word, ...] = self.search.take(state.first, count)
        if count is None:
            state.taken = state.frames
        elif words:
            state.taken = round(words[-1].end_s / self.frame_s)
        return words

    # Capabilities of the first pass; without one, the answer that its absence stands for

    def unspeakable(self, bias: Bias) -> tuple[str, ...]:
        """Phrases that no symbols of our model express."""
        return self.search.unspeakable(bias) if isinstance(self.search, ChecksTerms) else ()

    def word_log_prob(self, word: str) -> float:
        """Natural log-probability of a word; minus infinity if the first pass does not rate words."""
        return self.search.word_log_prob(word) if isinstance(self.search, RatesWords) else -math.inf

    def agreement(self, state: WhisperState) -> Sequence[float]:
        """Share of the first pass's hypotheses that agrees on the words up to each of `words`."""
        if isinstance(self.search, Agreeing):
            return self.search.agreement(state.first)
        return (1.0,) * len(self.words(state))

    # The second pass

    def second_pass(self, state: WhisperState, audio: FrameAudio) -> SecondPass | None:
        """Return a function that reads the open segment; None without words, or if its audio is no longer there.

        The function returns words in the decoder's time. It raises `Unusable` for a text that repeats itself.
        """
        words = self.words(state)
        if not words:
            return None
        opened = round(words[0].start_s / self.frame_s)
        begin = max(state.taken, opened - self._lead)
        if begin < audio.frame:
            return None
        pcm = audio.pcm[round((begin - audio.frame) * self.frame_s * self._rate) :]
        terms = ", ".join(phrase for phrase, weight in state.bias.phrases if weight > 0)
        return partial(self._read, pcm, words, begin * self.frame_s, terms)

    def _read(self, pcm: PCM, ours: tuple[Word, ...], begin_s: float, terms: str) -> tuple[Word, ...]:
        samples = pcm
        if self._rate != SAMPLE_RATE:
            resampler = Resampler(self._rate, SAMPLE_RATE)
            samples = np.concatenate([resampler.resample(pcm), resampler.flush()])
        reading = self._whisper.read(samples, self._language, terms)
        if reading.repetition > REPEATS:
            raise Unusable(Fallback.REPEATED)
        if self._english:
            pairs = [pair for _, said, forms in tokens_of(reading.text) for pair in zip(said, forms, strict=True)]
        else:
            pairs = [(word, "") for word in comparable(reading.text).split()]
        texts, written = [said for said, _ in pairs], [form for _, form in pairs]
        end_s = begin_s + len(pcm) / self._rate
        return aligned(texts, ours, begin_s=begin_s, end_s=end_s, confidence=reading.confidence, written=written)
