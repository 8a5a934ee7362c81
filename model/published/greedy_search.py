"""Greedy search of a transducer over frames of several streams at once.

The bonus of key terms is added to the logits of symbols alone: it may replace a symbol by another one, or a blank by a
symbol of a key term, but a bonus that is taken back never turns a symbol into a blank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from model.published.frame_joiner import FrameJoiner
from model.published.transducer import Contexts, Floats, Indices, TransducerNetworks, written

NONE = -1.0  # no symbol


class TermBonus:
    """Bonus of each symbol for the next symbol of each row: (R, V), zero for rows without key terms."""

    def __init__(self, bonus: Floats, biased: NDArray[np.bool_], follow: Callable[[int, int], Floats]) -> None:
        """`biased` (R,): which rows have key terms; `follow`: row and symbol to the row's bonus (V,) after it."""
        self._bonus, self._biased, self._follow = bonus, biased, follow

    def of_row(self, row: int) -> TermBonus:
        """Return the bonus of one row alone, in the same memory."""
        rows = slice(row, row + 1)
        return TermBonus(self._bonus[rows], self._biased[rows], lambda _, symbol: self._follow(row, symbol))

    def wrote(self, rows: Indices, symbols: Indices) -> None:
        """Record a symbol of each of these rows."""
        for row, symbol in zip(rows.tolist(), symbols.tolist(), strict=True):
            if self._biased[row]:
                self._bonus[row] = self._follow(row, symbol)

    def choose(self, logits: Floats, best: Indices, rows: Indices, writes: NDArray[np.bool_]) -> Indices:
        """Return the symbols of frames (N, V) with their rows' bonus, given the best ones without it (N,)."""
        frames = np.flatnonzero(self._biased[rows])
        if not len(frames):
            return best
        raw = logits[frames]
        raised = raw + self._bonus[rows[frames]]
        raised[:, ~writes] = -np.inf
        symbols, own = raised.argmax(axis=1), best[frames]
        every = np.arange(len(frames))
        better = writes[own] | (raised[every, symbols] > raw[every, own])
        chosen = best.copy()
        chosen[frames] = np.where(better, symbols, own)
        return chosen


class GreedySearch:
    """The search with the networks of one model; callers own the contexts."""

    def __init__(self, networks: TransducerNetworks, *, alone: bool = False) -> None:
        """`alone`: search rows one at a time if the networks' rows depend on each other."""
        self.networks = networks
        self.writes = written(networks.tokens)
        self._alone = alone and networks.rows.dependent

    def search(
        self,
        contexts: Contexts,
        outputs: Floats,
        encoded: Floats,
        skipped: Indices | None = None,
        terms: TermBonus | None = None,
    ) -> Floats:
        """Search the frames (R, T, D) after the first `skipped` (R,), and update contexts and outputs (R, …).

        Returns: (R, T, E, 2) with at most E symbols per frame: symbol or `NONE`, log-probability.
        """
        if self._alone and len(encoded) > 1:
            single_rows = [
                (slice(row, row + 1), None if terms is None else terms.of_row(row)) for row in range(len(encoded))
            ]
            parts = [
                self.search(contexts[row], outputs[row], encoded[row], None if skipped is None else skipped[row], own)
                for row, own in single_rows
            ]
            return np.concatenate(parts)
        networks = self.networks
        most = networks.symbols_per_frame
        symbols = np.full((*encoded.shape[:2], most, 2), NONE, np.float32)
        counts = np.zeros(encoded.shape[:2], np.int64)  # symbols of each frame
        joiner = FrameJoiner(networks.join, networks.rows, encoded, self.writes)
        if skipped is not None:
            joiner.after[:] = skipped
        choose = None if terms is None else partial(terms.choose, writes=self.writes)
        while (first := joiner.next_symbols(outputs, choose)) is not None:
            if not len(first.rows):
                continue
            numbers = counts[first.rows, first.frames]
            symbols[first.rows, first.frames, numbers, 0] = first.symbols
            symbols[first.rows, first.frames, numbers, 1] = first.log_probs
            counts[first.rows, first.frames] += 1
            joiner.after[first.rows] += numbers + 1 == most  # else the frame may have another symbol
            contexts[first.rows], outputs[first.rows] = networks.advance(contexts[first.rows], first.symbols)
            if terms is not None:
                terms.wrote(first.rows, first.symbols)
        return symbols
