"""Scratch memory of a search: symbols kept for a frame, and a heap of candidates for the next hypotheses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.logs import exp
from model.ctc.search.prefix_score import BLANK_PENALTY, KEEPS_BLANK, KEPT_SHARE, KEPT_SYMBOLS, Texts
from model.machine.compiled import (
    ZERO,
    DoubleArray,
    FloatArray,
    IntArray,
    LongArray,
    compiled,
    compiled_inline,
    compiled_maker,
)

UNEXTENDED = ZERO - 1  # a candidate without a new symbol


class Work(NamedTuple):
    """Scratch memory of one kernel call; B beams."""

    kept: LongArray  # (V,) symbols kept in this frame, the likeliest first
    log_p: DoubleArray  # (V + 1,) of the symbols in this frame, -inf if not kept
    begins: DoubleArray  # (V + 1,) of those in `kept`: most that they add as first of a word; last the largest of these
    places: LongArray  # (V,) index of a kept symbol in `kept`
    written: LongArray  # (B,) bit k: the prefix extended by symbol kept[k] is also alive
    on_i: IntArray  # (B, HYPOTHESIS_INTS) hypotheses without a new symbol
    on_f: DoubleArray
    next_i: IntArray  # (B, HYPOTHESIS_INTS) hypotheses after the frame
    next_f: DoubleArray
    scores: DoubleArray  # (B,) of the candidates, a heap with the worst first
    origins: LongArray  # (B,) hypothesis extended by a candidate
    symbols: LongArray  # (B,) its new symbol, or UNEXTENDED
    moved: IntArray  # (nodes,) scratch of `compact`
    slots: IntArray  # (a power of two,) hash table of the next hypotheses by their futures


@compiled_maker
def work_for(beams: int, symbols: int) -> Work:
    """Allocate the scratch memory of one call."""
    return Work(
        np.empty(symbols, np.int64),
        np.full(symbols + 1, -np.inf),
        np.empty(symbols + 1, np.float64),
        np.empty(symbols, np.int64),
        np.empty(beams, np.int64),
        np.empty((beams, at.HYPOTHESIS_INTS), np.int32),
        np.empty((beams, at.HYPOTHESIS_FLOATS), np.float64),
        np.empty((beams, at.HYPOTHESIS_INTS), np.int32),
        np.empty((beams, at.HYPOTHESIS_FLOATS), np.float64),
        np.empty(beams, np.float64),
        np.empty(beams, np.int64),
        np.empty(beams, np.int64),
        np.empty(at.tree_nodes(beams), np.int32),
        np.empty(at.slots_for(beams), np.int32),
    )


@compiled
def keep_symbols(texts: Texts, row: FloatArray, limits: DoubleArray, work: Work) -> int:
    """Keep the fewest symbols of a frame (V,) whose probabilities sum to the share in `limits`; return their number.

    A log-probability that is NaN or infinite, which only a broken model outputs, counts as -inf, and so does that of a
    symbol other than the blank that writes nothing. The penalty of the blank is subtracted after the selection.
    """
    for c in range(len(row)):
        work.log_p[c] = -np.inf
    count, total, share = 0, 0.0, limits[KEPT_SHARE]
    while count < min(int(limits[KEPT_SYMBOLS]), len(row)) and (total < share or share >= 1.0):
        best = -1
        for c in range(len(row)):
            if (
                (best < 0 or row[c] > row[best])
                and work.log_p[c] == -np.inf
                and abs(row[c]) < np.inf
                and (texts.symbols[c, at.ROLE] != at.NEVER or c == texts.blank)
            ):
                best = c
        if best < 0:
            break
        work.log_p[best] = row[best]
        work.kept[count], work.places[best] = best, count
        total += exp(np.float64(row[best]))
        count += 1
    if limits[KEEPS_BLANK] != 0 and work.log_p[texts.blank] == -np.inf and abs(row[texts.blank]) < np.inf:
        work.log_p[texts.blank] = row[texts.blank]
        work.kept[count], work.places[texts.blank] = texts.blank, count
        count += 1
    work.log_p[texts.blank] -= texts.weights[BLANK_PENALTY]
    return count


@compiled_inline
def least_of(work: Work, size: int, reached: float) -> float:
    """Score that a new candidate must exceed: `reached`, or the worst candidate if all rows are used."""
    return float(max(reached, work.scores[0])) if size == len(work.scores) else reached


@compiled_inline
def admit(work: Work, size: int, score: float, origin: int, symbol: int) -> int:
    """Add a candidate, instead of the worst one if all rows are used; return their number."""
    if size < len(work.scores):
        push(work, size, score, origin, symbol)
        return size + 1
    _replace_worst(work, size, score, origin, symbol)
    return size


@compiled
def push(work: Work, size: int, score: float, origin: int, symbol: int) -> None:
    """Add a candidate to a heap of `size`."""
    place = size
    while place > 0 and work.scores[(place - 1) >> 1] > score:
        above = (place - 1) >> 1
        _set(work, place, work.scores[above], work.origins[above], work.symbols[above])
        place = above
    _set(work, place, score, origin, symbol)


@compiled
def _replace_worst(work: Work, size: int, score: float, origin: int, symbol: int) -> None:
    """Replace the worst of `size` candidates."""
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and work.scores[below + 1] < work.scores[below]:
            below += 1
        if work.scores[below] >= score:
            break
        _set(work, place, work.scores[below], work.origins[below], work.symbols[below])
        place = below
    _set(work, place, score, origin, symbol)


@compiled
def _set(work: Work, place: int, score: float, origin: int, symbol: int) -> None:
    work.scores[place], work.origins[place], work.symbols[place] = score, origin, symbol
