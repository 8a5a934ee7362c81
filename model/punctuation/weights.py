"""Vocabulary and weights of the tagger, and their file: safetensors, int8 matrices with one scale per row."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as decoded

from model.checkpoint import WEIGHTS
from model.errors import CheckpointError

SHIPPED = WEIGHTS / "tutti-punctuation.safetensors"

Arrays = Mapping[str, NDArray[Any]]
_WORDS = "vocabulary"

Rows = NDArray[np.int32]  # (T, 3): rows of the word, its ending and its beginning

UNKNOWN = 0  # row of a word outside the vocabulary
PART = 3  # letters of an ending or a beginning: "-ing", "-'ll", "un-"
BUCKETS = 4096  # hash buckets, of endings and of beginnings; English has about this number of three letters


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words with rows of their own, from row 1 on; a word's features are its row, its ending and its beginning."""

    words: tuple[str, ...]
    _features: dict[str, tuple[int, int, int]]

    @classmethod
    def of(cls, words: Sequence[str]) -> Vocabulary:
        """Assign rows to words in order."""
        return cls(tuple(words), {word: (row, *_parts(word)) for row, word in enumerate(words, 1)})

    def rows(self, words: Sequence[str]) -> Rows:
        """Rows of word, ending and beginning for each word, (T, 3) int32."""
        features: list[int] = []
        for word in words:
            features += self._features.get(word) or (UNKNOWN, *_parts(word))
        return np.array(features, np.int32).reshape(-1, 3)


_BUCKETS = tuple(range(BUCKETS))  # one object for each number, as the features of a vocabulary share them


def _parts(word: str) -> tuple[int, int]:
    """Rows of a word's ending and beginning."""
    ending, beginning = zlib.crc32(word[-PART:].encode()), zlib.crc32(word[:PART].encode())
    return _BUCKETS[ending % BUCKETS], _BUCKETS[beginning % BUCKETS]


def load(path: Path) -> tuple[dict[str, NDArray[Any]], Vocabulary]:
    """Read tensors as they are stored, and the vocabulary. Raises: CheckpointError."""
    try:
        tensors = decoded(path.read_bytes())
        words = tensors.pop(_WORDS).tobytes().decode().split("\n")
    except (OSError, SafetensorError, KeyError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the tagger {path}: {error}; reinstall tutti") from error
    return tensors, Vocabulary.of(words)
