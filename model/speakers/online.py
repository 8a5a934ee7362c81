"""Speakers of one live stream, with a fixed cost a second and bounded memory.

Vectors join small groups, at most `GROUPS`, and the groups are divided into speakers by the rule for recordings
(`model.speakers.ward`) each third vector. A speaker's number stays with most of its vectors. The speaker of a vector is
that of the best path: similarities add up, and each change costs `CHANGE`. Depends on the vectors and their times
alone, in sums of integers, so labels are the same alone, in any batch and after `restore`. Labels that were given are
not rewritten: what is learned later, and two speakers that turn out to be one, work in what follows. One voice at a
time: overlapping voices are not separated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.speakers.vectors import ONE, SIZE, Integers, Vector, cosine, rounded, similarity
from model.speakers.ward import NEAR, costs_of, divided

__all__ = ["SAME_VOICE", "OnlineSpeakers", "best_path", "similarity"]

SAME_VOICE = 0.4
"""Least similarity of a vector to that of an enrolled voice to be the same voice."""
JOINS = 0.1
"""Distance, as in `costs_of`, of a vector that joins a group."""
LEAST = 4
"""Vectors of a speaker."""
GROUPS = 24
MOST_COUNTED = 60_000
"""Vectors of a group, whose sum fits 32 bits; older ones count less from then on."""
CHANGE = 0.15
"""Similarity that a change of speaker costs."""
KEPT = 64
"""Vectors whose speakers are remembered: words are asked for within 25 s."""
COMPARED = 12
"""Last vectors that are compared with a speaker that is found only now."""
PERIOD = 3
"""Vectors from one division of the groups to the next."""
_HEAD, _SPAN = struct.Struct("<IIIIIq"), struct.Struct("<dd")


class OnlineSpeakers:
    """Speakers of a stream, numbered from 0 in the order of their first appearance; at most `most`."""

    def __init__(self, most: int = 8) -> None:
        self.most = most
        self._taken = 0
        self._sums = np.zeros((0, SIZE), np.int64)  # of the groups, like the next three
        self._counts = np.zeros(0, np.int64)
        self._numbers = np.zeros(0, np.int64)  # speaker; -1 for a group that is too small for one
        self._products = np.zeros((0, 0), np.int64)  # of the sums
        self._voices = np.zeros((0, SIZE), np.int64)  # sum of each speaker's vectors; zeros where it became another
        self._last = np.zeros((0, SIZE), np.int64)
        self._spans: list[tuple[float, float]] = []  # of the last vectors
        self._scores = np.zeros((0, most), np.int64)  # of the same: similarities to the speakers
        self._path: Sequence[int] = ()  # of the same: speakers; empty until they are asked for

    def take(self, vector: Vector, start_s: float, end_s: float) -> None:
        """Learn a vector, of norm 1, of the voice between two times of the stream; times ascend."""
        x = rounded(vector)
        self._last = np.concatenate([self._last, x[None]])[-COMPARED:]
        self._spans = [*self._spans, (start_s, end_s)][-KEPT:]
        self._scores = np.concatenate([self._scores, self._similarities(x)[None]])[-KEPT:]
        self._join(x)
        if self._taken % PERIOD == 0:
            self._divide()
        self._taken += 1
        self._path = ()

    def speaker_at(self, start_s: float, end_s: float) -> tuple[int | None, float]:
        """Return the speaker of a word between two times, and a confidence of 0 to 1; None before the first vector."""
        if not self._spans:
            return None, 0.0
        middle = (start_s + end_s) / 2
        nearest = min(range(len(self._spans)), key=lambda index: abs(sum(self._spans[index]) / 2 - middle))
        scores = self._scores[:, : len(self._voices)]
        self._path = self._path or best_path(scores)
        speaker = self._path[nearest]
        others = np.delete(scores[nearest], speaker)
        lead = int(scores[nearest, speaker]) - (int(others.max()) if len(others) else 0)
        return speaker, min(1.0, max(0.0, 0.5 + lead / ONE))

    def state(self) -> bytes:
        """Return everything that `restore` needs."""
        sizes = (len(self._sums), len(self._voices), len(self._last), len(self._spans))
        head = _HEAD.pack(self.most, *sizes, self._taken)
        wide = (self._sums, self._counts, self._numbers)
        spans = b"".join(_SPAN.pack(*span) for span in self._spans)
        narrow = b"".join(array.astype("<i2").tobytes() for array in (self._last, self._scores))
        return head + b"".join(array.astype("<i4").tobytes() for array in wide) + spans + narrow

    def restore(self, state: bytes) -> None:
        """Continue from a `state`. Raises: ValueError for other bytes."""
        try:
            most, groups, speakers, last, recent, taken = _HEAD.unpack_from(state)
            at = _HEAD.size

            def read(kind: str, *shape: int) -> Integers:
                nonlocal at
                count = int(np.prod(shape))
                values: Any = np.frombuffer(state, kind, count, at).reshape(shape).astype(np.int64)
                at += count * np.dtype(kind).itemsize
                return np.asarray(values, np.int64)

            sums, counts, numbers = read("<i4", groups, SIZE), read("<i4", groups), read("<i4", groups)
            spans = [_SPAN.unpack_from(state, at + _SPAN.size * index) for index in range(recent)]
            at += _SPAN.size * recent
            latest, scores = read("<i2", last, SIZE), read("<i2", recent, most)
        except (struct.error, ValueError) as error:
            raise ValueError(f"not the state of a stream's speakers: {error}") from error
        self.most, self._taken = most, taken
        self._sums, self._counts, self._numbers, self._products = sums, counts, numbers, sums @ sums.T
        self._voices = _summed(sums, numbers, speakers)
        self._spans, self._last, self._scores, self._path = spans, latest, scores, ()

    def copy(self) -> OnlineSpeakers:
        """Return an independent copy, for a fork of the stream."""
        other = OnlineSpeakers(self.most)
        other.restore(self.state())
        return other

    def _similarities(self, x: Integers) -> Integers:
        """Return the similarity of a vector to each speaker, (most,); those that are not there are far."""
        scores = np.full(self.most, -ONE, np.int64)
        for speaker, total in enumerate(self._voices):
            if total.any():
                scores[speaker] = cosine(x, total)
        return scores

    def _join(self, x: Integers) -> None:
        """Add a vector to the group that it spreads least, or begin a group, and join two if there are too many."""
        if len(self._sums):
            products = self._sums @ x
            costs = costs_of(products, self._products.diagonal(), self._counts, int(x @ x), 1, near=NEAR)
            group = int(costs.argmin())
            if costs[group] < JOINS:
                self._sums[group] += x
                self._counts[group] += 1
                self._products[group] += products
                self._products[:, group] = self._products[group]
                self._products[group, group] = self._sums[group] @ self._sums[group]
                if self._counts[group] > MOST_COUNTED:
                    self._sums[group] //= 2
                    self._counts[group] //= 2
                    self._products = self._sums @ self._sums.T
                return
        self._sums = np.concatenate([self._sums, x[None]])
        self._counts, self._numbers = np.append(self._counts, 1), np.append(self._numbers, -1)
        self._products = self._sums @ self._sums.T
        if len(self._sums) > GROUPS:
            clusters = divided(self._products, self._counts, GROUPS, GROUPS)
            firsts = [int(np.flatnonzero(clusters == cluster)[0]) for cluster in range(GROUPS)]
            for group, cluster in enumerate(clusters):
                if group != (first := firsts[cluster]):
                    self._sums[first] += self._sums[group]
                    self._counts[first] += self._counts[group]
            self._sums, self._counts, self._numbers = self._sums[firsts], self._counts[firsts], self._numbers[firsts]
            self._products = self._sums @ self._sums.T

    def _divide(self) -> None:
        """Divide the groups into speakers, and give each the number that most of its vectors had."""
        clusters = divided(self._products, self._counts, 1, len(self._counts))
        sizes = np.bincount(clusters, self._counts)
        order = [
            cluster
            for cluster in np.argsort(-sizes, kind="stable")
            if sizes[cluster] >= LEAST or cluster == sizes.argmax()
        ]
        taken: set[int] = set()
        numbers = np.full(len(clusters), -1, np.int64)
        for cluster in order:
            members = np.flatnonzero(clusters == cluster)
            votes = np.zeros(self.most, np.int64)
            for group in members:
                if self._numbers[group] >= 0 and int(self._numbers[group]) not in taken:
                    votes[self._numbers[group]] += self._counts[group]
            number = int(votes.argmax()) if votes.any() else len(self._voices)
            if number == self.most:
                continue
            if number == len(self._voices):
                self._voices = np.concatenate([self._voices, np.zeros((1, SIZE), np.int64)])
            taken.add(number)
            numbers[members] = number
        self._numbers = numbers
        self._voices = _summed(self._sums, numbers, len(self._voices))
        for back, x in enumerate(self._last[::-1], 1):
            self._scores[-back] = self._similarities(x)


def _summed(sums: Integers, numbers: Integers, speakers: int) -> Integers:
    """Return the sum of the vectors of each speaker, (speakers, SIZE); zeros where there are none any more."""
    voices = np.zeros((speakers, SIZE), np.int64)
    np.add.at(voices, numbers[numbers >= 0], sums[numbers >= 0])
    return voices


def best_path(scores: NDArray[np.int64]) -> Sequence[int]:
    """Return the speaker of each vector (N,) with the highest sum of scores (N, K) less the cost of changes.

    Source: Viterbi 1967.
    """
    cost = round(CHANGE * ONE)
    total, came = scores[0].copy(), np.zeros(scores.shape, np.int64)
    every = np.arange(scores.shape[1])
    for index in range(1, len(scores)):
        best = int(total.argmax())
        stays = total >= total[best] - cost
        came[index] = np.where(stays, every, best)
        total = np.where(stays, total, total[best] - cost) + scores[index]
    path = [int(total.argmax())]
    for index in range(len(scores) - 1, 0, -1):
        path.append(int(came[index, path[-1]]))
    return path[::-1]
