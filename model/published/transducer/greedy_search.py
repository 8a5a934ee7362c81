"""Greedy search of a transducer over frames of several streams at once.

The bonus of key terms is added to the logits of symbols alone: it may replace a symbol by another one, or a blank by a
symbol of a key term, but a bonus that is taken back never turns a symbol into a blank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from model.published.transducer.frame_joiner import FrameJoiner
from model.published.transducer.networks import Contexts, Floats, Indices, TransducerNetworks, log_probs_of, written

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

    def biased(self, rows: Indices) -> NDArray[np.bool_]:
        """Return whether each of these rows has key terms."""
        return self._biased[rows]

    def choose(self, logits: Floats, rows: Indices, writes: NDArray[np.bool_]) -> Indices:
        """Return the symbols of frames (N, V) with the bonus of their rows (N,), which have key terms."""
        raised = logits + self._bonus[rows]
        raised[:, ~writes] = -np.inf
        symbols, own = raised.argmax(axis=1), logits.argmax(axis=1)
        every = np.arange(len(rows))
        better = writes[own] | (raised[every, symbols] > logits[every, own])
        chosen: Indices = np.where(better, symbols, own)
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
        joiner = FrameJoiner(networks.best, networks.rows, networks.project(encoded), self.writes)
        if skipped is not None:
            joiner.after[:] = skipped
        choose = None if terms is None else partial(self._choose, terms)
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

    def _choose(self, terms: TermBonus, frames: Floats, outputs: Floats, rows: Indices) -> tuple[Indices, Floats]:
        """Return symbols and log-probabilities (N,): only frames of rows with key terms need the scores of all."""
        biased = terms.biased(rows)
        symbols, log_probs = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
        if not biased.all():
            symbols[~biased], log_probs[~biased] = self.networks.best(frames[~biased], outputs[~biased], self.writes)
        if biased.any():
            logits = self.networks.join(frames[biased], outputs[biased])
            symbols[biased] = terms.choose(logits, rows[biased], self.writes)
            log_probs[biased] = log_probs_of(logits, symbols[biased], self.writes)
        return symbols, log_probs
