"""Features of a word for the tagger: its row in a vocabulary, and its ending and beginning."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int32]  # (T, 3): rows of the word, its ending and its beginning

UNKNOWN = 0  # row of a word outside the vocabulary
PART = 3  # letters of an ending or a beginning: "-ing", "-'ll", "un-"
BUCKETS = 4096  # hash buckets, of endings and of beginnings; English has about this number of three letters


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words with rows of their own, from row 1 on."""

    words: tuple[str, ...]
    _rows: dict[str, int]

    @classmethod
    def of(cls, words: Sequence[str]) -> Vocabulary:
        """Assign rows to words in order."""
        return cls(tuple(words), {word: row for row, word in enumerate(words, 1)})

    def rows(self, words: Sequence[str]) -> Rows:
        """Rows of word, ending and beginning for each word, (T, 3) int32."""
        found = [(self._rows.get(word, UNKNOWN), _bucket(word[-PART:]), _bucket(word[:PART])) for word in words]
        return np.array(found, np.int32).reshape(-1, 3)


def _bucket(part: str) -> int:
    return zlib.crc32(part.encode()) % BUCKETS
