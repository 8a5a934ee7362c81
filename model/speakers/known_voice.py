"""Whether a known voice speaks in a live stream or in a recording, by a vector of it from before.

Each vector is as similar to the known voice as it is, and to all others as `OTHERS` says; the best path between the two
decides, so that a single vector does not. In sums of integers, as in `online`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from model.speakers.online import KEPT, begins, best_path
from model.speakers.vectors import ONE, Vector, cosine, rounded

SAME_VOICE = 0.4
"""Least similarity of the means of two stretches of voice to be of the same one."""
OTHERS = 0.25
"""Similarity of a single vector to a known voice at which it is as likely another one's."""
_WINDOW = struct.Struct("<ddh")


class KnownVoice:
    """Follows a live stream, whose vectors it compares with those of a known voice."""

    def __init__(self, vector: Vector) -> None:
        """`vector`: of the known voice, (SIZE,), norm 1."""
        self._voice = rounded(vector)
        self._windows: list[tuple[float, float, int]] = []  # start, end, similarity
        self._path: Sequence[int] = ()  # of the same: 1 for another voice; empty until it is needed

    def take(self, vector: Vector, start_s: float, end_s: float) -> None:
        """Compare a vector, of norm 1, of the voice between two times of the stream; times ascend."""
        self._windows = [*self._windows, (start_s, end_s, cosine(rounded(vector), self._voice))][-KEPT:]
        self._path = ()

    def is_other(self, start_s: float, end_s: float) -> bool:
        """Return whether another voice says a word between two times; False before the first vector."""
        if not self._windows:
            return False
        self._path = self._path or _path(
            [similarity for *_, similarity in self._windows], np.array([span for *span, _ in self._windows], np.float64)
        )
        middle = (start_s + end_s) / 2
        return bool(
            self._path[min(range(len(self._windows)), key=lambda at: abs(sum(self._windows[at][:2]) / 2 - middle))]
        )

    def state(self) -> bytes:
        """Return everything that `restore` needs, but the vector of the known voice."""
        return b"".join(_WINDOW.pack(*window) for window in self._windows)

    def restore(self, state: bytes) -> None:
        """Continue from a `state`. Raises: ValueError for other bytes."""
        try:
            self._windows, self._path = list(_WINDOW.iter_unpack(state)), ()
        except struct.error as error:
            raise ValueError(f"not the state of a known voice: {error}") from error

    def copy(self) -> KnownVoice:
        """Return an independent copy, for a fork of the stream."""
        return copy(self)  # `take` replaces what it changes


def others_in_recording(vectors: Vector, spans_s: NDArray[np.float64], voice: Vector) -> Sequence[int]:
    """Return for each vector (N, SIZE) of a whole recording 1 where another voice speaks than the known one, else 0.

    `spans_s` (N, 2): start and end of each.
    """
    known = rounded(voice)
    return _path([cosine(vector, known) for vector in rounded(vectors)], spans_s)


def _path(similarities: Sequence[int], spans_s: NDArray[np.float64]) -> Sequence[int]:
    own = np.array(similarities, np.int64)
    return best_path(np.stack([own, np.full_like(own, round(OTHERS * ONE))], axis=1), begins(spans_s))
