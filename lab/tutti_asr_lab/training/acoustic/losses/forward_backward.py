"""Compiled forward-backward over all label sequences on a CPU; rows of the batch are the lanes of a vector.

Rows are sorted by length, longest first, so that the unfinished ones come first in every frame. Each frame is scaled by
its sum, row by row, as in Rabiner 1989, section V.A. A graph is (labels (S,), ends (S,), first (S + 1,), others (A,),
weights (A,)): arcs `first[s]` to `first[s + 1]` connect state s with `others`: sources in the forward pass, targets in
the backward pass.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import compiled, entry_point

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Graph = tuple[Longs, Floats, Longs, Longs, Floats]
TINY = np.float32(1e-30)  # less than the smallest fraction of a row's best state that float32 can represent


@compiled
def _unfinished(frames: Longs, t: int) -> int:
    """Number of rows that have a frame t."""
    count = 0
    while count < len(frames) and frames[count] > t:
        count += 1
    return count


@compiled
def _gather(  # noqa: PLR0917 - numba takes them by position
    graph: Graph, state: int, again: Floats, other: Floats, of_again: Floats, of_other: Floats
) -> None:
    """Sum over a state's arcs: `again` (S, B) over arcs between equal labels, `other` over all others."""
    labels, _, first, others, weights = graph
    count = len(of_again)
    for arc in range(first[state], first[state + 1]):
        end, weight = others[arc], weights[arc]
        if labels[end] == labels[state]:
            for row in range(count):
                of_again[row] += weight * again[end, row]
        else:
            for row in range(count):
                of_other[row] += weight * other[end, row]


@compiled
def _invert(values: Floats) -> None:
    for row in range(len(values)):
        values[row] = 1 / max(values[row], TINY)


@entry_point
def forward(probs: Floats, frames: Longs, graph: Graph, seen: Floats, totals: NDArray[np.float64]) -> None:
    """Fill `seen` (2, T, S, B): scaled forward probabilities of each state after its label and after a blank.

    probs (T, K, B), frames (B,) descending. `totals` (B,) receives the total log-probability, -inf without a path.
    """
    labels, ends = graph[0], graph[1]
    states, rows = len(labels), len(frames)
    spoken, silent = np.zeros((states, rows), np.float32), np.zeros((states, rows), np.float32)
    both, ahead, sums = np.zeros((states, rows), np.float32), np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    silent[0], both[0], totals[:] = 1, 1, 0
    for t in range(len(probs)):
        count = _unfinished(frames, t)
        prob = probs[t]
        sums[:count] = 0
        for state in range(states):
            ahead[:count] = spoken[state, :count]
            _gather(graph, state, silent, both, ahead[:count], ahead[:count])
            label = labels[state]
            for row in range(count):
                seen[0, t, state, row] = ahead[row] * prob[label, row]
                seen[1, t, state, row] = both[state, row] * prob[0, row]
                sums[row] += seen[0, t, state, row] + seen[1, t, state, row]
        for row in range(count):
            totals[row] += math.log(max(sums[row], TINY))
        _invert(sums[:count])
        for state in range(states):
            for row in range(count):
                seen[0, t, state, row] *= sums[row]
                seen[1, t, state, row] *= sums[row]
                spoken[state, row], silent[state, row] = seen[0, t, state, row], seen[1, t, state, row]
                both[state, row] = spoken[state, row] + silent[state, row]
    for row in range(rows):
        ending = np.sum(ends * both[:, row])
        totals[row] += math.log(ending) if ending > 0 else -math.inf


@compiled
def _occupation(labels: Longs, seen: Floats, to_come: Floats, taken: Floats, sums: Floats) -> None:
    """Fill `taken` (K, B) with each label's probability in one frame, from `seen` and `to_come`, both (2, S, B)."""
    count = len(sums)
    sums[:] = 0
    for state in range(len(labels)):
        label = labels[state]
        for row in range(count):
            said, unsaid = seen[0, state, row] * to_come[0, state, row], seen[1, state, row] * to_come[1, state, row]
            taken[label, row] += said
            taken[0, row] += unsaid
            sums[row] += said + unsaid
    _invert(sums)
    for label in range(len(taken)):
        for row in range(count):
            taken[label, row] *= sums[row]


@entry_point
def backward(probs: Floats, frames: Longs, graph: Graph, seen: Floats, occupied: Floats) -> None:
    """Fill `occupied` (T, K, B), given as zeros, with the probability of each label at each frame, given all frames."""
    labels, ends = graph[0], graph[1]
    states, rows = len(labels), len(frames)
    to_come = np.empty((2, states, rows), np.float32)  # after the label, after a blank
    for state in range(states):
        to_come[:, state] = ends[state]
    arrived, sums = np.zeros((states, rows), np.float32), np.zeros(rows, np.float32)
    again, other = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    for t in range(len(probs) - 1, -1, -1):
        count = _unfinished(frames, t)
        prob = probs[t]
        _occupation(labels, seen[:, t], to_come, occupied[t], sums[:count])
        for state in range(states):
            label = labels[state]
            for row in range(count):
                arrived[state, row] = to_come[0, state, row] * prob[label, row]
        sums[:count] = TINY
        for state in range(states):
            again[:count], other[:count] = 0, 0
            _gather(graph, state, arrived, arrived, again[:count], other[:count])
            for row in range(count):
                onwards = to_come[1, state, row] * prob[0, row] + other[row]
                to_come[0, state, row], to_come[1, state, row] = onwards + arrived[state, row], onwards + again[row]
                sums[row] += to_come[0, state, row] + to_come[1, state, row]
        _invert(sums[:count])
        for state in range(states):
            for row in range(count):
                to_come[0, state, row] *= sums[row]
                to_come[1, state, row] *= sums[row]
