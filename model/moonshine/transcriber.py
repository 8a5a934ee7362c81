"""The network as a transcriber of segments for the second pass, in English."""

from __future__ import annotations

import zlib
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from model.checkpoint import digest_of
from model.ctc.combination import Transcript
from model.moonshine.model import LONGEST_S, SAMPLE_RATE, SHIPPED, Moonshine
from model.text.spelled import tokens_of

REPEATS = 2.4
"""Size of a text over that of its compressed form, above which it repeats itself. Source: Radford et al. 2022."""

_NUMERIC_SIGNS = frozenset("%$£€¥&°")


class SegmentTranscriber:
    """Writes the text of a segment; implements `model.ctc.combination.Transcriber` by structure.

    The weights are loaded by the thread that reads the first segment.
    """

    sample_rate = SAMPLE_RATE
    longest_s = LONGEST_S

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights' file. Raises: OSError."""
        return digest_of(SHIPPED.read_bytes())

    def warm_up(self) -> None:
        """Load the weights, and compile."""
        self.transcribe(np.zeros(SAMPLE_RATE, np.int16))

    def transcribe(self, pcm: NDArray[np.int16]) -> Transcript | None:
        """Return the words of samples (S,), at most `longest_s`; None for a text that repeats itself or has no end.

        Raises: CheckpointError.
        """
        network = _loaded()
        reading = network.read(pcm)
        text = network.text_of(reading)
        size = len(text.encode())
        if not reading.ended or size > REPEATS * len(zlib.compress(text.encode())):
            return None
        return Transcript(*words_of(text), reading.log_prob)


def words_of(text: str) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[int]]:
    """Return the words of a text as they are said, and as written; and the places of those in digits or signs."""
    words: list[str] = []
    written: list[str] = []
    numbers: set[int] = set()
    for token, said, forms in tokens_of(text.replace("per cent", "percent")):
        if any(sign.isnumeric() or sign in _NUMERIC_SIGNS for sign in token):
            numbers.update(range(len(words), len(words) + len(said)))
        words += said
        written += forms
    return tuple(words), tuple(written), frozenset(numbers)


@lru_cache(maxsize=1)
def _loaded() -> Moonshine:
    return Moonshine.load()
