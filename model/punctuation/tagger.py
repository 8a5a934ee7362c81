"""Tagger for serving: marks and capitals of one final from its words alone, in numpy, on one thread.

Computed in float64, so that rounding differences between processors change no mark: the same words give the same text
everywhere. Knows no times, streams or digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError
from model.punctuation.marks import ENDS, MARKS, NONE, PERIOD, QUESTION, Labeled
from model.punctuation.weights import SHIPPED, Arrays, Vocabulary, load, matrix_of, rows_of

Floats = NDArray[np.float64]

DILATIONS = (1, 2, 4, 8, 1)
LONGEST = 200  # words tagged at a time; longer finals are split to keep the arrays small
ONE_THREAD = 2**18
"""Multiplications of a product up to which OpenBLAS, included in numpy's wheels, stays on the calling thread.

Larger products wake threads on every core, which then spin while the model's thread runs. Source: OpenBLAS,
interface/gemm.c, SMP_THRESHOLD_MIN times GEMM_MULTITHREAD_THRESHOLD.
"""
_EPSILON = 1e-5  # of torch's layer norm


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Floats  # (in, out)
    bias: Floats

    def __call__(self, inputs: Floats) -> Floats:
        weight = self.weight
        rows, count = max(1, ONE_THREAD // weight.size), len(inputs)
        found = np.empty((count, weight.shape[1]))
        for i in range(0, count, rows):
            np.matmul(inputs[i : i + rows], weight, out=found[i : i + rows])
        found += self.bias
        return found


@dataclass(frozen=True, slots=True)
class _Norm:
    scale: Floats
    shift: Floats

    def __call__(self, inputs: Floats) -> Floats:
        channels = inputs.shape[1]
        centered: Floats = inputs - np.add.reduce(inputs, axis=1, keepdims=True) / channels
        deviation = np.add.reduce(centered * centered, axis=1, keepdims=True)
        deviation /= channels
        deviation += _EPSILON
        np.sqrt(deviation, out=deviation)
        centered /= deviation
        centered *= self.scale
        centered += self.shift
        return centered


@dataclass(frozen=True, slots=True)
class _Block:
    dilation: int
    norm: _Norm
    mix: _Linear
    out: _Linear

    def __call__(self, hidden: Floats) -> Floats:
        normal, reach = self.norm(hidden), self.dilation  # (T, C)
        words, channels = normal.shape
        around = np.zeros((words, 3 * channels))  # each word's neighbors, zeros outside of the text
        around[reach:, :channels] = normal[: max(0, words - reach)]
        around[:, channels : 2 * channels] = normal
        around[: max(0, words - reach), 2 * channels :] = normal[reach:]
        mixed = self.mix(around)  # (T, 3 C) to (T, C)
        found = self.out(np.maximum(mixed, 0.0, out=mixed))
        found += hidden
        return found


class Tagger:
    """Marks and capitals of recognized English words."""

    def __init__(self, tensors: Arrays, vocabulary: Vocabulary) -> None:
        """Raises: CheckpointError if a tensor is missing."""
        self._tables = {name: tensors[name] for name in tensors if name.startswith(_TABLES)}
        self._vocabulary = vocabulary
        try:
            self._input = _linear(tensors, "input")
            self._blocks = [
                _Block(
                    dilation,
                    _norm(tensors, f"blocks.{i}.norm"),
                    _linear(tensors, f"blocks.{i}.mix"),
                    _linear(tensors, f"blocks.{i}.out"),
                )
                for i, dilation in enumerate(DILATIONS)
            ]
            self._norm, self._output = _norm(tensors, "norm"), _linear(tensors, "output")
        except KeyError as error:
            raise CheckpointError(f"the tagger's weights lack {error}; reinstall tutti") from error

    @classmethod
    def from_file(cls, path: Path) -> Tagger:
        """Load the weights. Raises: CheckpointError."""
        return cls(*load(path))

    def logits(self, words: Sequence[str]) -> Floats:
        """Logits (T, 5): of no mark, comma, period and question mark; then of a capital, positive for yes."""
        rows = self._vocabulary.rows(words)  # (T, 3)
        summed = sum(rows_of(self._tables, f"{name}.weight", rows[:, i]) for i, name in enumerate(_TABLES))
        hidden = self._input(np.asarray(summed))  # (T, C)
        for block in self._blocks:
            hidden = block(hidden)
        return self._output(self._norm(hidden))

    def tag(self, words: Sequence[str], opening: Sequence[str] = (), *, ends: bool = True) -> list[Labeled]:
        """Label the words of a final; `opening` is the part of their sentence in earlier finals.

        With `ends` the last mark ends a sentence; without it the sentence continues, and the last word has no mark.
        """
        found: list[Labeled] = []
        before = tuple(opening)
        for first in range(0, len(words), LONGEST):
            part = words[first : first + LONGEST]
            found += self._tag(part, before, begins=not before, ends=ends and first + LONGEST >= len(words))
            before = tuple(part) if found[-1].mark not in ENDS else ()
        return found

    def _tag(self, words: Sequence[str], opening: Sequence[str], *, begins: bool, ends: bool) -> list[Labeled]:
        logits = self.logits([*opening, *words])[len(opening) :]
        marks = logits[:, : len(MARKS)].argmax(axis=1).tolist()
        marks[-1] = (QUESTION if logits[-1, QUESTION] > logits[-1, PERIOD] else PERIOD) if ends else NONE
        capitals = (logits[:, len(MARKS)] > 0.0).tolist()
        found = []
        for word, mark, capital in zip(words, marks, capitals, strict=True):
            found.append(Labeled(word, mark, begins or capital))
            begins = mark in ENDS
        return found


_TABLES = ("words", "endings", "beginnings")


@cache
def shipped_tagger() -> Tagger:
    """Shipped tagger, loaded on first use. Raises: CheckpointError."""
    return Tagger.from_file(SHIPPED)


def _linear(tensors: Arrays, name: str) -> _Linear:
    weight = np.ascontiguousarray(matrix_of(tensors, f"{name}.weight").T)  # (in, out)
    return _Linear(weight, tensors[f"{name}.bias"].astype(np.float64))


def _norm(tensors: Arrays, name: str) -> _Norm:
    return _Norm(tensors[f"{name}.weight"].astype(np.float64), tensors[f"{name}.bias"].astype(np.float64))
