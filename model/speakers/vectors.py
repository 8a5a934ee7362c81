"""Exact arithmetic on vectors of voices: rounded to integers, so that no sum depends on its order or the processor."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SIZE = 256
ONE = 16_384
"""Length of a rounded vector, and a cosine of 1."""

Vector = NDArray[np.float32]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def rounded(vectors: Vector) -> Integers:
    """Return vectors (…, SIZE) of norm 1 in units of 1 / ONE."""
    return np.rint(vectors.astype(np.float64) * ONE).astype(np.int64)


def unit(total: Integers) -> Integers:
    """Return a sum of rounded vectors, scaled to the length ONE."""
    return np.rint(total.astype(np.float64) * (ONE / max(_length(total), 1.0))).astype(np.int64)


def cosine(vector: Integers, total: Integers) -> int:
    """Return the cosine of a rounded vector of norm 1 and a sum of such ones, in units of 1 / ONE."""
    return round(int(vector @ total) / max(_length(total), 1.0))


def mean_of(vectors: Vector) -> Vector:
    """Return the mean of vectors (N, SIZE) of norm 1, of norm 1 again."""
    return (unit(rounded(vectors).sum(axis=0)) / ONE).astype(np.float32)


def similarity(a: Vector, b: Vector) -> float:
    """Return the cosine of two vectors of norm 1."""
    return cosine(rounded(a), rounded(b)) / ONE


def _length(total: Integers) -> float:
    return math.sqrt(int(total @ total))  # correctly rounded, by IEEE 754
