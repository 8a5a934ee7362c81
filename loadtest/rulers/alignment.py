"""Ends of the words of a known text in a recording, by forced alignment with pocketsphinx.

Its Gaussian models look at each frame's own sound, so its word ends do not have the delay of a streaming recognizer.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import PeerMissing

FRAME_S = 0.01
SEARCH = {"beam": 1e-100, "pbeam": 1e-100, "wbeam": 1e-100, "bestpath": False}
"""Wide beams and no lattice search: with the defaults, 6 of the 16 shipped recordings have no alignment."""
_VARIANT = re.compile(r"\(\d+\)$")  # suffix of a word's second and later pronunciations
_WORD = re.compile(r"[a-z'].*")


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of the text and where it ends, seconds."""

    text: str
    end_s: float


class Aligner:
    """Pocketsphinx with its own English models and dictionary."""

    def __init__(self) -> None:
        """Raises: PeerMissing."""
        try:
            pocketsphinx = importlib.import_module("pocketsphinx")
        except ImportError as error:
            raise PeerMissing("forced alignment needs pocketsphinx: pip install 'tutti-asr[loadtest]'") from error
        models = Path(pocketsphinx.get_model_path()) / "en-us"
        self._decoder: Any = pocketsphinx.Decoder(
            hmm=str(models / "en-us"), dict=str(models / "cmudict-en-us.dict"), lm=None, loglevel="FATAL", **SEARCH
        )

    def align(self, samples: NDArray[np.int16], text: str) -> tuple[SpokenWord, ...] | None:
        """Return the words of a text said in (S,) int16 audio at 16 kHz; None if it cannot be aligned.

        That is a text with a word that the dictionary lacks, or audio in which it was not found.
        """
        words = text.split()
        if not words or any(self._decoder.lookup_word(word) is None for word in words):
            return None
        self._decoder.set_align_text(" ".join(words))
        self._decoder.start_utt()
        self._decoder.process_raw(samples.astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        spoken = tuple(
            SpokenWord(_VARIANT.sub("", segment.word), (segment.end_frame + 1) * FRAME_S)
            for segment in self._decoder.seg() or ()
            if _WORD.match(segment.word)
        )
        return spoken if [word.text for word in spoken] == words else None
