"""Speakers of one live stream, with a fixed cost a second and bounded memory.

Vectors that follow one another without a pause form small groups, at most `GROUPS`, and the groups are divided into
speakers by the rule for recordings (`model.speakers.ward`). A speaker's number stays with most of the vectors for which
it was returned. The speaker of a vector is that of the best path: similarities add up, and each change has a cost,
which is small after a pause. Depends on the vectors and their times alone, in sums of integers, so labels are the same
alone, in any batch and after `restore`. Labels that were given are not rewritten: what is learned later, and two
speakers that turn out to be one, work in what follows. One voice at a time: overlapping voices are not separated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.speakers.vectors import ONE, SIZE, Integers, Vector, rounded, unit
from model.speakers.ward import Apart, divided

APART = Apart(least=0.15, more=0.012, far=2.4)
TOGETHER = 5
"""Successive vectors without a pause that are one group."""
LEAST = 4
"""Vectors of a speaker."""
GROUPS = 12
"""Most groups: enough for eight voices and what may be a new one."""
MOST_COUNTED = 60_000
"""Vectors of a group, whose sum fits 32 bits; older ones count less from then on."""
CHANGE, CHANGE_AT_PAUSE = 0.3, 0.05
"""Similarity that a change of speaker costs, and after a pause."""
WITHIN_S = 0.2
"""A window that begins later than this before the end of the last one begins after a pause."""
KEPT = 64
"""Vectors whose speakers are remembered: words are asked for within 25 s."""
COMPARED = 32
"""Last vectors that are compared with a speaker that is found only now."""
SETTLED = 3
"""Vectors after which the speaker of a vector counts as returned."""
FOR_FIRST = 0.2
"""Similarity by which another speaker than the first one has to be nearer, in a stream that listens to the first."""
_HEAD, _SPAN = struct.Struct("<IIIIIII"), struct.Struct("<dd")


class OnlineSpeakers:
    """Speakers of a stream, numbered from 0 in the order of their first appearance; at most `most`."""

    def __init__(self, most: int = 8, *, listens: bool = False) -> None:
        """`listens`: number 0 stays with the voice of the first vectors, and in doubt a word is its."""
        self.most = most
        self._listens = listens
        self._sums = np.zeros((0, SIZE), np.int64)  # of the groups, like the next three
        self._counts = np.zeros(0, np.int64)
        self._numbers = np.zeros(0, np.int64)  # speaker; -1 for a group that is too small for one
        self._returned = np.zeros((0, most), np.int64)  # vectors by the speaker that was first returned for them
        self._products = np.zeros((0, 0), np.int64)  # of the sums
        self._places: list[int] = []  # groups of the last vectors
        self._length = 0  # vectors of the last group since a pause
        self._voices = np.zeros((0, SIZE), np.int64)  # sum of each speaker's vectors; zeros where it became another
        self._last = np.zeros((0, SIZE), np.int64)
        self._spans: list[tuple[float, float]] = []  # of the last vectors
        self._scores = np.zeros((0, most), np.int64)  # of the same: similarities to the speakers
        self._path: Sequence[int] = ()  # of the same: speakers; empty until they are asked for

    def take(self, vector: Vector, start_s: float, end_s: float) -> None:
        """Learn a vector, of norm 1, of the voice between two times of the stream; times ascend."""
        x = rounded(vector)
        paused = not self._spans or start_s >= self._spans[-1][1] - WITHIN_S
        self._last = np.concatenate([self._last, x[None]])[-COMPARED:]
        self._spans = [*self._spans, (start_s, end_s)][-KEPT:]
        self._scores = np.concatenate([self._scores, np.zeros((1, self.most), np.int64)])[-KEPT:]
        self._join(x, paused)
        self._divide()
        self._path = ()
        if len(self._places) > SETTLED:
            self._returned[self._places[0], self._scores[-1 - SETTLED].argmax()] += 1

    def _best(self) -> Sequence[int]:
        """Return the speakers of the last vectors."""
        if not self._path:
            scores = self._scores[:, : len(self._voices)].copy()
            scores[:, 0] += round(FOR_FIRST * ONE) * self._listens
            self._path = best_path(scores, begins(np.array(self._spans)))
        return self._path

    def speaker_at(self, start_s: float, end_s: float) -> tuple[int | None, float]:
        """Return the speaker of a word between two times, and a confidence of 0 to 1; None before the first vector."""
        if not self._spans:
            return None, 0.0
        middle = (start_s + end_s) / 2
        nearest = min(range(len(self._spans)), key=lambda index: abs(sum(self._spans[index]) / 2 - middle))
        scores, speaker = self._scores[:, : len(self._voices)], self._best()[nearest]
        others = np.delete(scores[nearest], speaker)
        lead = int(scores[nearest, speaker]) - (int(others.max()) if len(others) else 0)
        return speaker, min(1.0, max(0.0, 0.5 + lead / ONE))

    def state(self) -> bytes:
        """Return everything that `restore` needs."""
        sizes = (len(self._sums), len(self._voices), len(self._last), len(self._spans))
        head = _HEAD.pack(self.most, *sizes, len(self._places), self._length)
        wide = (self._sums, self._counts, self._numbers, self._returned, np.array(self._places, np.int64))
        spans = b"".join(_SPAN.pack(*span) for span in self._spans)
        narrow = b"".join(array.astype("<i2").tobytes() for array in (self._last, self._scores))
        return head + b"".join(array.astype("<i4").tobytes() for array in wide) + spans + narrow

    def restore(self, state: bytes) -> None:
        """Continue from a `state`. Raises: ValueError for other bytes."""
        try:
            most, groups, speakers, last, recent, places, length = _HEAD.unpack_from(state)
            at = _HEAD.size

            def read(kind: str, *shape: int) -> Integers:
                nonlocal at
                count = int(np.prod(shape))
                values: Any = np.frombuffer(state, kind, count, at).reshape(shape).astype(np.int64)
                at += count * np.dtype(kind).itemsize
                return np.asarray(values, np.int64)

            sums, counts, numbers = read("<i4", groups, SIZE), read("<i4", groups), read("<i4", groups)
            returned, latest_groups = read("<i4", groups, most), read("<i4", places)
            spans = [_SPAN.unpack_from(state, at + _SPAN.size * index) for index in range(recent)]
            at += _SPAN.size * recent
            latest, scores = read("<i2", last, SIZE), read("<i2", recent, most)
        except (struct.error, ValueError) as error:
            raise ValueError(f"not the state of a stream's speakers: {error}") from error
        self.most, self._length, self._places = most, length, latest_groups.tolist()
        self._sums, self._counts, self._numbers, self._returned = sums, counts, numbers, returned
        self._products = sums @ sums.T
        self._voices = _summed(sums, numbers, speakers)
        self._spans, self._last, self._scores, self._path = spans, latest, scores, ()

    def copy(self) -> OnlineSpeakers:
        """Return an independent copy, for a fork of the stream."""
        other = OnlineSpeakers(self.most, listens=self._listens)
        other.restore(self.state())
        return other

    def _similarities(self, units: Integers) -> Integers:
        """Return the similarity of vectors (N, SIZE) to each speaker, (N, most); those that are not there are far."""
        scores = np.full((len(units), self.most), -ONE, np.int64)
        there = np.flatnonzero(self._voices.any(axis=1))
        means = [unit(self._voices[speaker]) for speaker in there]
        if means:
            scores[:, there] = np.rint(units @ np.stack(means).T / ONE).astype(np.int64)
        return scores

    def _join(self, x: Integers, paused: bool) -> None:
        """Add a vector to the group of the last one, or begin a group, and join two groups if there are too many."""
        self._length = 0 if paused else self._length % TOGETHER
        if self._length == 0:
            self._sums = np.concatenate([self._sums, np.zeros((1, SIZE), np.int64)])
            self._counts, self._numbers = np.append(self._counts, 0), np.append(self._numbers, -1)
            self._returned = np.concatenate([self._returned, np.zeros((1, self.most), np.int64)])
            self._places.append(len(self._sums) - 1)
        else:
            self._places.append(self._places[-1])
        self._places = self._places[-1 - SETTLED :]
        self._length += 1
        group = self._places[-1]
        self._sums[group] += x
        self._counts[group] += 1
        if self._counts[group] > MOST_COUNTED:
            self._sums[group] //= 2
            self._counts[group] //= 2
        self._products = self._sums @ self._sums.T
        if len(self._sums) > GROUPS:
            clusters = divided(self._products, self._counts, GROUPS, GROUPS, APART)
            firsts = [int(np.flatnonzero(clusters == cluster)[0]) for cluster in range(GROUPS)]
            for group, cluster in enumerate(clusters):
                if group != (first := firsts[cluster]):
                    self._sums[first] += self._sums[group]
                    self._counts[first] += self._counts[group]
                    self._returned[first] += self._returned[group]
            self._places = clusters[self._places].tolist()
            self._sums, self._counts, self._numbers = self._sums[firsts], self._counts[firsts], self._numbers[firsts]
            self._returned, self._products = self._returned[firsts], self._sums @ self._sums.T

    def _divide(self) -> None:
        """Divide the groups into speakers, and give each the number that most of its vectors had."""
        clusters = divided(self._products, self._counts, 1, len(self._counts), APART)
        sizes = np.bincount(clusters, self._counts).astype(np.int64)
        votes = np.zeros((len(sizes), self.most), np.int64)
        np.add.at(votes, clusters, self._returned * MOST_COUNTED)
        known = np.flatnonzero(self._numbers >= 0)
        np.add.at(votes, (clusters[known], self._numbers[known]), self._counts[known])
        votes[:, self._returned.sum(axis=0) == 0] += 1  # numbers that were not returned are free
        votes[(sizes < LEAST) & (np.arange(len(sizes)) != sizes.argmax())] = 0
        if self._listens:
            votes[clusters[0], 0] = np.iinfo(np.int64).max  # the first group has the first vectors
        numbers = np.full(len(clusters), -1, np.int64)
        while votes.any():
            cluster, number = divmod(int(votes.argmax()), self.most)
            numbers[clusters == cluster] = number
            votes[cluster] = votes[:, number] = 0
        more = max(0, int(numbers.max()) + 1 - len(self._voices))
        self._voices = np.concatenate([self._voices, np.zeros((more, SIZE), np.int64)])
        self._numbers = numbers
        self._voices = _summed(self._sums, numbers, len(self._voices))
        self._scores[-len(self._last) :] = self._similarities(self._last)


def _summed(sums: Integers, numbers: Integers, speakers: int) -> Integers:
    """Return the sum of the vectors of each speaker, (speakers, SIZE); zeros where there are none any more."""
    voices = np.zeros((speakers, SIZE), np.int64)
    np.add.at(voices, numbers[numbers >= 0], sums[numbers >= 0])
    return voices


def begins(spans_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which spans (N, 2) begin after a pause, (N,)."""
    return np.append(True, spans_s[1:, 0] >= spans_s[:-1, 1] - WITHIN_S)[: len(spans_s)]


def best_path(scores: NDArray[np.int64], after_pause: NDArray[np.bool_]) -> Sequence[int]:
    """Return the speaker of each vector (N,) with the highest sum of scores (N, K) less the cost of changes.

    Source: Viterbi 1967.
    """
    costs = np.where(after_pause, round(CHANGE_AT_PAUSE * ONE), round(CHANGE * ONE)).tolist()
    total, came = scores[0].copy(), np.zeros(scores.shape, np.int64)
    every = np.arange(scores.shape[1])
    for index in range(1, len(scores)):
        best = int(total.argmax())
        stays = total >= total[best] - costs[index]
        came[index] = np.where(stays, every, best)
        total = np.where(stays, total, total[best] - costs[index]) + scores[index]
    path = [int(total.argmax())]
    for index in range(len(scores) - 1, 0, -1):
        path.append(int(came[index, path[-1]]))
    return path[::-1]
