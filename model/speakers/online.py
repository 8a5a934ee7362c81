"""Speakers of one stream as it goes on: centroids of vectors, with a fixed cost a second and bounded memory.

Depends on the vectors and their times alone, in fixed-order arithmetic, so labels are the same alone, in any batch and
after `restore`. Labels that were given are never rewritten: what is learned later works only in what follows. One
voice at a time: overlapping voices are not separated.
"""

from __future__ import annotations

import struct
from collections import deque

import numpy as np
from numpy.typing import NDArray

SIZE = 256
SAME_VOICE = 0.65
"""Least similarity of a vector to that of an enrolled voice, or to a speaker's mean, to be the same voice."""
KEPT = 64
"""Vectors whose labels are remembered: 25 s, so that words are asked for in that time."""
_SCALE = 16_384  # vectors are rounded to multiples of 1 / _SCALE: sums of their products are exact

Vector = NDArray[np.float32]


def similarity(a: Vector, b: Vector) -> float:
    """Return the cosine of two vectors of norm 1, rounded to 16 bits each: exact, so equal on every processor."""
    return int(_rounded(a) @ _rounded(b)) / _SCALE**2


class OnlineSpeakers:
    """Speakers of a stream, numbered from 0 in the order of their first appearance; at most `most`."""

    def __init__(self, most: int = 8) -> None:
        self.most = most
        self._sums = np.zeros((0, SIZE), np.int64)
        self._recent: deque[tuple[float, float, int, float]] = deque(maxlen=KEPT)  # start, end, speaker, confidence

    def take(self, vector: Vector, start_s: float, end_s: float) -> None:
        """Learn a vector, of norm 1, of the voice between two times of the stream; times ascend."""
        rounded = _rounded(vector)
        scores = [_cosine(rounded, each) for each in self._sums]
        best = max(range(len(scores)), key=scores.__getitem__, default=-1)
        if best < 0 or (scores[best] < SAME_VOICE and len(scores) < self.most):
            self._sums = np.concatenate([self._sums, rounded[None]])
            best, score = len(self._sums) - 1, 1.0
        else:
            self._sums[best] += rounded
            score = scores[best]
        self._recent.append((start_s, end_s, best, score))

    def speaker_at(self, start_s: float, end_s: float) -> tuple[int | None, float]:
        """Return the speaker of a word between two times, and a confidence of 0 to 1; None before the first vector."""
        middle = (start_s + end_s) / 2
        if not self._recent:
            return None, 0.0
        _, _, speaker, confidence = min(self._recent, key=lambda each: abs((each[0] + each[1]) / 2 - middle))
        return speaker, max(0.0, min(1.0, confidence))

    def state(self) -> bytes:
        """Return everything that `restore` needs."""
        head = struct.pack("<III", self.most, len(self._sums), len(self._recent))
        recent = b"".join(struct.pack("<ddid", *each) for each in self._recent)
        return head + self._sums.astype("<i8").tobytes() + recent

    def restore(self, state: bytes) -> None:
        """Continue from a `state`. Raises: ValueError for other bytes."""
        try:
            self.most, speakers, recent = struct.unpack_from("<III", state)
            sums, rest = 12 + speakers * SIZE * 8, struct.calcsize("<ddid")
            self._sums = np.frombuffer(state[12:sums], "<i8").reshape(speakers, SIZE).astype(np.int64)
            found = [struct.unpack_from("<ddid", state, sums + rest * place) for place in range(recent)]
        except (struct.error, ValueError) as error:
            raise ValueError(f"not the state of speakers: {error}") from error
        self._recent = deque(found, maxlen=KEPT)

    def copy(self) -> OnlineSpeakers:
        """Return an independent copy, for a fork of the stream."""
        other = OnlineSpeakers(self.most)
        other.restore(self.state())
        return other


def _rounded(vector: Vector) -> NDArray[np.int64]:
    return np.rint(vector.astype(np.float64) * _SCALE).astype(np.int64)


def _cosine(vector: NDArray[np.int64], total: NDArray[np.int64]) -> float:
    """Return the cosine of a rounded vector of norm 1 and a sum of such vectors; square roots are exact by IEEE 754."""
    length = int(total @ total)
    return int(vector @ total) / (_SCALE * float(np.sqrt(float(length)))) if length else 0.0
