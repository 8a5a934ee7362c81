"""Digits of finished segments by the GRU network, which was trained on more of them than the default network.

A segment of few words, or of numbers, of which the default network is not sure, is read by the GRU network as well. If
it reads digits alone, they are the segment's words. It computes in exact 8-bit integers, so the words of a segment
depend on its audio alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from model.acoustic import load_own, log_probs_of
from model.config import TAIL_FRAMES
from model.ctc.beam import BeamDecoder
from model.ctc.interface import PCM, digest_of
from model.ctc.words import Word

NETWORK = Path("tutti-gru")
DIGITS = frozenset(("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"))
ZEROS = frozenset(("oh", "o"))  # which are digits next to others
FEW_WORDS = 2
MOST_CONFIDENCE = 0.7  # of the default network's least sure word. Source: model/LOG.md
LEAST_CONFIDENCE = 0.5  # of each digit, by the same source


class DigitReader:
    """Reads a segment by the GRU network; callable on any thread."""

    def __init__(self, search: BeamDecoder) -> None:
        """`search` is over the network's outputs. Raises: CheckpointError, PrecisionError."""
        self._network = load_own(NETWORK, device="cpu", precision="int8")
        self._search = search

    @property
    def digest(self) -> str:
        """Digest of everything that its words depend on."""
        return digest_of("digits", self._network.facts.digest, self._search.digest)

    def warm_up(self) -> None:
        """Compile all entry points, or load them from disk."""
        self._search.warm_up()
        self._read(np.zeros(self._network.config.step_samples, np.int16))

    def digits(self, words: Sequence[Word], pcm: PCM, begin_s: float) -> tuple[Word, ...]:
        """Return the words of a segment, `pcm` (S,) from `begin_s` on, if they are digits alone; else none.

        `words`: those of the default network.
        """
        numbers = sum(word.text in DIGITS | ZEROS for word in words)
        if len(words) > FEW_WORDS and 2 * numbers < len(words):
            return ()
        if words and min(word.confidence for word in words) > MOST_CONFIDENCE:
            return ()
        read = self._read(pcm)
        sure = all(word.text in DIGITS | ZEROS and word.confidence >= LEAST_CONFIDENCE for word in read)
        if not sure or not any(word.text in DIGITS for word in read):
            return ()
        moved = ((word, word.start_s + begin_s, word.end_s + begin_s) for word in read)
        return tuple(msgspec.structs.replace(word, start_s=start_s, end_s=end_s) for word, start_s, end_s in moved)

    def _read(self, pcm: PCM) -> tuple[Word, ...]:
        config, search = self._network.facts.own_config, self._search
        tail = (config.delay_frames + TAIL_FRAMES) * config.frame_samples
        (log_probs,) = log_probs_of(self._network, [np.pad(pcm, (0, tail))])
        state = search.start(0)
        search.search([state], search.own(log_probs[None, config.delay_frames :]))
        words = search.take(state)
        search.release(state)
        return words
