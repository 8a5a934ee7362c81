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
from safetensors.numpy import save as encoded

from model.checkpoint import WEIGHTS, write_atomically
from model.errors import CheckpointError

SHIPPED = WEIGHTS / "tutti-punctuation.safetensors"

Arrays = Mapping[str, NDArray[Any]]
_LARGEST = 127
_WORDS = "vocabulary"
_SCALE = ".scale"

Rows = NDArray[np.int32]  # (T, 3): rows of the word, its ending and its beginning

UNKNOWN = 0  # row of a word outside the vocabulary
PART = 3  # letters of an ending or a beginning: "-ing", "-'ll", "un-"
BUCKETS = 4096  # hash buckets, of endings and of beginnings; English has about this number of three letters


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words with rows of their own, from row 1 on; a word's features are its row, its ending and its beginning."""

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


def save(path: Path, tensors: Arrays, vocabulary: Vocabulary) -> None:
    """Write float tensors: matrices (rows, columns) as int8 and scales (rows,), vectors as float32."""
    stored: dict[str, NDArray[Any]] = {_WORDS: np.frombuffer("\n".join(vocabulary.words).encode(), np.uint8)}
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            stored[name] = tensor.astype(np.float32)
            continue
        scale = np.maximum(np.abs(tensor).max(axis=1) / _LARGEST, np.finfo(np.float32).tiny)  # (rows,)
        stored[name] = np.rint(tensor / scale[:, None]).astype(np.int8)
        stored[name + _SCALE] = scale.astype(np.float32)
    write_atomically(path, encoded(stored))


def load(path: Path) -> tuple[dict[str, NDArray[Any]], Vocabulary]:
    """Read tensors as they are stored, and the vocabulary. Raises: CheckpointError."""
    try:
        tensors = decoded(path.read_bytes())
        words = tensors.pop(_WORDS).tobytes().decode().split("\n")
    except (OSError, SafetensorError, KeyError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the tagger {path}: {error}; reinstall tutti") from error
    return tensors, Vocabulary.of(words)


def rows_of(tensors: Arrays, name: str, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Rows of a matrix, multiplied by their scales."""
    found: NDArray[np.float64] = tensors[name][rows] * tensors[name + _SCALE][rows][..., None].astype(np.float64)
    return found


def matrix_of(tensors: Arrays, name: str) -> NDArray[np.float64]:
    """A whole matrix in float64."""
    return rows_of(tensors, name, np.arange(len(tensors[name])))
