"""Comparison of a rewritten graph with the published one, over speech, alone and in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.published.contracts import Contract
from model.published.features import windows_of
from model.published.filter_bank import Fbank
from model.published.metadata import Graph
from model.published.rows import speech
from model.published.states import StateTensor
from model.published.stepping import GraphSlots
from model.published.timing import PublishedDescription

TOLERANCE = 1e-3
"""Largest difference of a rewrite that rounds: of log-probs, or relative to an encoder's largest output."""


ROWS, WINDOWS = 3, 6


def speech_windows(description: PublishedDescription, options: Fbank | None) -> NDArray[Any]:
    """Return windows (WINDOWS, ROWS, …) of a recording, a different stretch in each row."""
    audio = speech(description, ROWS, WINDOWS)
    streams = windows_of(description, options, capacity=ROWS)
    found = [streams.push(np.arange(ROWS), audio[:, step]) for step in range(audio.shape[1])]
    return np.stack([windows for ready, windows in found if len(ready) == ROWS])


@dataclass(frozen=True, slots=True)
class Difference:
    """Results of two graphs compared: equality of all bits, of the symbols, and the largest difference."""

    bits: bool
    symbols: bool
    largest: float

    @property
    def tolerable(self) -> bool:
        """Whether a rewrite that rounds may differ this much."""
        return self.symbols and self.largest <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results (W, B, …) of windows alone and in a batch, and the states of all rows after them."""

    results: tuple[NDArray[np.float32], ...]
    states: tuple[tuple[StateTensor, bytes], ...]


def outcome_of(graph: Graph, contract: Contract, shape: tuple[int, ...], windows: NDArray[Any]) -> Outcome:
    """Run windows (W, B, …) of B new streams, each stream alone, then all in one batch."""
    rows = windows.shape[1]
    slots = GraphSlots(graph, contract, shape, capacity=rows, largest=rows)
    alone = [slots.run(np.array([row]), window[row : row + 1]) for window in windows for row in range(rows)]
    found = [np.concatenate(alone).reshape(len(windows), rows, *shape)]
    if not contract.one_row:
        for row in range(rows):
            slots.states.reset(row)
        found.append(np.stack([slots.run(np.arange(rows), window) for window in windows]))
    states, at = [], 0
    exported = [slots.states.export(row) for row in range(rows)]
    for tensor in contract.states:
        states += [(tensor, state[at : at + tensor.size]) for state in exported]
        at += tensor.size
    return Outcome(tuple(found), tuple(states))


def compare(one: Outcome, other: Outcome, *, encoder: bool) -> Difference:
    """Compare two outcomes; `encoder`: the results are frames of an encoder, not log-probs.

    Only the states that both graphs have are compared.
    """
    pairs = list(zip(one.results, other.results, strict=True))
    largest = max(float(np.abs(left - right).max()) for left, right in pairs)
    if not np.isfinite(largest):
        return Difference(bits=False, symbols=False, largest=float("inf"))
    scale = max(1.0, *(float(np.abs(left).max()) for left, _ in pairs)) if encoder else 1.0
    return Difference(
        bits=_shared(one, other) == _shared(other, one) and all(np.array_equal(left, right) for left, right in pairs),
        symbols=encoder or all(np.array_equal(left.argmax(-1), right.argmax(-1)) for left, right in pairs),
        largest=largest / scale,
    )


def _shared(one: Outcome, other: Outcome) -> list[bytes]:
    known = {tensor for tensor, _ in other.states}
    return [state for tensor, state in one.states if tensor in known]
