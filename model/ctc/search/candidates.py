"""Scratch memory of a search: symbols kept for a frame, and a heap of candidates for the next hypotheses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.logs import exp
from model.ctc.search.prefix_score import BLANK_PENALTY, KEEPS_BLANK, KEPT_SHARE, KEPT_SYMBOLS, Texts
from model.machine.compiled import ZERO, DoubleArray, FloatArray, IntArray, LongArray, compiled, compiled_inline

UNEXTENDED = ZERO - 1  # a candidate without a new symbol


class Work(NamedTuple):
    """Pointers into the scratch memory of one kernel call; B beams."""

    beams: int
    last_slot: int  # one less than a power of two, which is also a mask
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
    slots: IntArray  # (last_slot + 1,) hash table of the next hypotheses by their futures


@compiled
def work_longs(beams: int, symbols: int) -> int:
    """Size of the scratch memory of one call, in numbers of 64 bits."""
    ints = at.tree_nodes(beams) + at.slots_for(beams) + 2 * beams * at.HYPOTHESIS_INTS
    return 4 * symbols + 2 + (4 + 2 * at.HYPOTHESIS_FLOATS) * beams + (ints + 1) // 2


@compiled
def work_at(address: int, beams: int, symbols: int) -> Work:
    """Return the pointers into the scratch memory at `address`, which is aligned to 8 bytes."""
    log_p = address + 8 * symbols
    begins = log_p + 8 * (symbols + 1)
    places = begins + 8 * (symbols + 1)
    written = places + 8 * symbols
    scores = written + 8 * beams
    origins = scores + 8 * beams
    codes = origins + 8 * beams
    on_f = codes + 8 * beams
    next_f = on_f + 8 * beams * at.HYPOTHESIS_FLOATS
    on_i = next_f + 8 * beams * at.HYPOTHESIS_FLOATS
    next_i = on_i + 4 * beams * at.HYPOTHESIS_INTS
    moved = next_i + 4 * beams * at.HYPOTHESIS_INTS
    slots = moved + 4 * at.tree_nodes(beams)
    work = Work(
        beams,
        at.slots_for(beams) - 1,
        at.longs(address),
        at.doubles(log_p),
        at.doubles(begins),
        at.longs(places),
        at.longs(written),
        at.hypothesis_ints(on_i),
        at.hypothesis_floats(on_f),
        at.hypothesis_ints(next_i),
        at.hypothesis_floats(next_f),
        at.doubles(scores),
        at.longs(origins),
        at.longs(codes),
        at.ints(moved),
        at.ints(slots),
    )
    work.log_p[symbols] = -np.inf
    return work


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
    return float(max(reached, work.scores[0])) if size == work.beams else reached


@compiled_inline
def admit(work: Work, size: int, score: float, origin: int, symbol: int) -> int:
    """Add a candidate, instead of the worst one if all rows are used; return their number."""
    if size < work.beams:
        push(work, size, score, origin, symbol)
        return size + 1
    _replace_worst(work, size, score, origin, symbol)
    return size


@compiled_inline
def push(work: Work, size: int, score: float, origin: int, symbol: int) -> None:
    """Add a candidate to a heap of `size`."""
    place = size
    while place > 0 and work.scores[(place - 1) >> 1] > score:
        above = (place - 1) >> 1
        _set(work, place, work.scores[above], work.origins[above], work.symbols[above])
        place = above
    _set(work, place, score, origin, symbol)


@compiled_inline
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


@compiled_inline
def _set(work: Work, place: int, score: float, origin: int, symbol: int) -> None:
    work.scores[place], work.origins[place], work.symbols[place] = score, origin, symbol
