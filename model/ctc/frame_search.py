"""One frame of prefix beam search: which symbols count, how each hypothesis goes on, which of them stay.

Source: Graves and Jaitly 2014, CTC prefix search; Amodei et al. 2016 (Deep Speech 2), section 7.3, for the pruning of
symbols. Alignments that end in blank and in a letter are summed apart; where two of them reach the same prefix, the
likelier one says when its letters were heard.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model.config import BLANK
from model.ctc import bias
from model.ctc import layout as at
from model.ctc.bias import SPACE_COLUMN
from model.ctc.compiled import DoubleArray, FloatArray, IntArray, LongArray, compiled
from model.ctc.layout import MAX_LETTERS, Stream, copy_row
from model.ctc.prefix_score import KEYTERM_BOOST, WORD_BONUS, Texts, add_letter, close_word
from model.ctc.prefix_tree import add_child, find_child

GOES_ON = -1  # a candidate that writes nothing


class Work(NamedTuple):
    """Scratch of one kernel call, B beams."""

    kept: IntArray  # (V,) symbols that count in this frame, the likeliest first
    log_p: DoubleArray  # (V,) -inf for the others
    written: LongArray  # (B,) bit c: the prefix longer by symbol c is alive, too
    on_i: IntArray  # (B, HYPOTHESIS_INTS) hypotheses that wrote nothing
    on_f: DoubleArray
    next_i: IntArray  # (B, HYPOTHESIS_INTS) hypotheses after the frame
    next_f: DoubleArray
    scores: DoubleArray  # (B,) of the candidates; the worst is first, as in every heap
    origins: IntArray  # (B,) hypothesis
    symbols: IntArray  # (B,) that it writes, or GOES_ON
    moved: IntArray  # (nodes,)


@compiled
def work_for(beams: int, symbols: int) -> Work:
    """Allocate the scratch of one call."""
    return Work(
        np.empty(symbols, np.int32),
        np.empty(symbols, np.float64),
        np.empty(beams, np.int64),
        np.empty((beams, at.HYPOTHESIS_INTS), np.int32),
        np.empty((beams, at.HYPOTHESIS_FLOATS), np.float64),
        np.empty((beams, at.HYPOTHESIS_INTS), np.int32),
        np.empty((beams, at.HYPOTHESIS_FLOATS), np.float64),
        np.empty(beams, np.float64),
        np.empty(beams, np.int32),
        np.empty(beams, np.int32),
        np.empty(at.tree_nodes(beams), np.int32),
    )


@compiled
def add_logs(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@compiled
def keep_symbols(row: FloatArray, share: float, limit: int, work: Work) -> int:
    """Keep the fewest symbols of a frame (V,) that have `share` of the probability together, at most `limit`."""
    for c in range(len(row)):
        work.log_p[c] = -np.inf
    count, total = 0, 0.0
    while count < min(limit, len(row)) and (total < share or share >= 1.0):
        best = -1
        for c in range(len(row)):
            if work.log_p[c] == -np.inf and row[c] > -np.inf and (best < 0 or row[c] > row[best]):
                best = c
        if best < 0:
            break
        work.log_p[best] = row[best]
        work.kept[count] = best
        total += np.exp(np.float64(row[best]))
        count += 1
    return count


@compiled
def search_frame(texts: Texts, stream: Stream, work: Work, kept: int) -> None:
    """Advance the hypotheses by one frame, of which `keep_symbols` kept some. There must be room in the tree."""
    size = _go_on(texts, stream, work, kept)
    size = _extend(texts, stream, work, kept, size)
    if size == 0:  # no alignment is possible: not a distribution over symbols
        return
    _replace_hypotheses(texts, stream, work, size)
    best = 0
    for h in range(1, size):
        if work.scores[h] > work.scores[best]:
            best = h
    stream.header[at.BEST], stream.header[at.QUIET] = best, 0
    shift = stream.hypotheses_f[best, at.TOTAL_P]  # only differences count: the sums stay small
    for h in range(size):
        for part in range(at.BLANK_P, at.TOTAL_P + 1):
            stream.hypotheses_f[h, part] -= shift


@compiled
def hear_blank(stream: Stream) -> None:
    """Advance the hypotheses by a frame that is blank for sure: their order does not change."""
    if stream.header[at.QUIET]:
        return
    ints, floats = stream.hypotheses_i, stream.hypotheses_f
    for h in range(stream.header[at.HYPOTHESES]):
        _end_in_blank(ints[h], floats[h], stream.header[at.FRAMES])
        floats[h, at.BLANK_P], floats[h, at.LETTER_P] = floats[h, at.TOTAL_P], -np.inf
    stream.header[at.QUIET] = 1


@compiled
def _end_in_blank(ints: IntArray, floats: DoubleArray, frame: int) -> None:
    """Let the alignments of a hypothesis that end in blank take over the likelier record, before they are summed."""
    if floats[at.LETTER_P] > floats[at.BLANK_P]:
        ints[at.BLANK_START], ints[at.BLANK_LAST] = ints[at.LETTER_START], frame - 1
        floats[at.BLANK_SUM] = floats[at.LETTER_SUM]


@compiled
def _go_on(texts: Texts, stream: Stream, work: Work, kept: int) -> int:
    """Score the hypotheses that write nothing, and what others write to reach them; return how many are possible."""
    count = stream.header[at.HYPOTHESES]
    for h in range(count):
        work.written[h] = 0
        copy_row(work.on_i, h, stream.hypotheses_i, h)
        copy_row(work.on_f, h, stream.hypotheses_f, h)
        ints, floats = work.on_i[h], work.on_f[h]
        symbol = stream.nodes_i[ints[at.NODE], at.SYMBOL]
        _end_in_blank(ints, floats, stream.header[at.FRAMES])
        floats[at.BLANK_P] = floats[at.TOTAL_P] + _rest_log_p(texts, stream, work, kept, ints[at.NODE])
        own = work.log_p[symbol] if symbol != BLANK and texts.columns[symbol] != SPACE_COLUMN else -np.inf
        floats[at.LETTER_P] += own
        if own > floats[at.LETTER_PEAK]:
            floats[at.LETTER_SUM] += own - floats[at.LETTER_PEAK]
            floats[at.LETTER_PEAK] = own
    for h in range(count):
        _receive(texts, stream, work, h)
    size = 0
    for h in range(count):
        total = add_logs(work.on_f[h, at.BLANK_P], work.on_f[h, at.LETTER_P])
        work.on_f[h, at.TOTAL_P] = total
        score = total + stream.nodes_f[stream.hypotheses_i[h, at.NODE], at.SCORE]
        if score > -np.inf:
            _push(work, size, score, h, GOES_ON)
            size += 1
    return size


@compiled
def _rest_log_p(texts: Texts, stream: Stream, work: Work, kept: int, node: int) -> float:
    """Return the log-probability of the symbols that leave a prefix as it is, a repeat of its letter left out."""
    rest, letters = work.log_p[BLANK], stream.nodes_i[node, at.LETTERS]
    if 0 < letters < MAX_LETTERS:
        return float(rest)
    own = stream.nodes_i[node, at.SYMBOL]
    for k in range(kept):
        c = work.kept[k]
        stays = texts.columns[c] == SPACE_COLUMN  # more spaces make no other text
        if letters > 0:
            stays = not stays and c != BLANK and c != own  # noqa: PLR1714  not a tuple, to the compiler
        if stays:
            rest = add_logs(rest, work.log_p[c])
    return float(rest)


@compiled
def _receive(texts: Texts, stream: Stream, work: Work, h: int) -> None:
    """Add what the hypothesis one symbol shorter, if it lives, brings by writing that symbol."""
    node = stream.hypotheses_i[h, at.NODE]
    parent = stream.nodes_i[node, at.PARENT]
    origin = stream.nodes_i[parent, at.HYPOTHESIS] if parent >= 0 else -1
    if origin < 0:
        return
    symbol = stream.nodes_i[node, at.SYMBOL]
    work.written[origin] |= 1 << symbol
    if work.log_p[symbol] == -np.inf:
        return
    ints, floats = work.on_i[h], work.on_f[h]
    log_p, start, last, total = _leave(stream, origin, symbol)
    log_p += work.log_p[symbol]
    if texts.columns[symbol] == SPACE_COLUMN:
        if log_p > floats[at.BLANK_P] and stream.nodes_i[node, at.CHILD] < 0:  # else the next word may begin too early
            _stamp(stream, node, start, last, total)
            ints[at.BLANK_LAST] = last
        floats[at.BLANK_P] = add_logs(floats[at.BLANK_P], log_p)
    else:
        if log_p > floats[at.LETTER_P]:
            ints[at.LETTER_START] = start
            floats[at.LETTER_PEAK] = work.log_p[symbol]
            floats[at.LETTER_SUM] = total + work.log_p[symbol]
        floats[at.LETTER_P] = add_logs(floats[at.LETTER_P], log_p)


@compiled
def _leave(stream: Stream, origin: int, symbol: int) -> tuple[float, int, int, float]:
    """Return the log-probability with which a hypothesis can write `symbol`, and its word's start, last frame, sum."""
    ints, floats = stream.hypotheses_i[origin], stream.hypotheses_f[origin]
    node = ints[at.NODE]
    repeat = stream.nodes_i[node, at.SYMBOL] == symbol
    log_p = floats[at.BLANK_P] if repeat else floats[at.TOTAL_P]
    frame = stream.header[at.FRAMES]
    if repeat or floats[at.BLANK_P] >= floats[at.LETTER_P]:
        start, last, total = ints[at.BLANK_START], ints[at.BLANK_LAST], floats[at.BLANK_SUM]
    else:
        start, last, total = ints[at.LETTER_START], np.int32(frame - 1), floats[at.LETTER_SUM]
    if stream.nodes_i[node, at.LETTERS] == 0:
        start, total = np.int32(frame), 0.0
    return log_p, start, last, total


@compiled
def _stamp(stream: Stream, node: int, start: int, last: int, total: float) -> None:
    """Record the word that a space closes at `node`."""
    stream.nodes_i[node, at.WORD_START], stream.nodes_i[node, at.WORD_LAST] = start, last
    stream.nodes_f[node, at.WORD_SUM] = total


@compiled
def _extend(texts: Texts, stream: Stream, work: Work, kept: int, size: int) -> int:
    """Offer each hypothesis longer by each symbol; return how many candidates there are then."""
    full = len(work.scores)
    for h in range(stream.header[at.HYPOTHESES]):
        floats, node = stream.hypotheses_f[h], stream.hypotheses_i[h, at.NODE]
        repeat = stream.nodes_i[node, at.SYMBOL]
        for k in range(kept):
            c = work.kept[k]
            if c == BLANK or (work.written[h] >> c) & 1:
                continue
            log_p = (floats[at.BLANK_P] if c == repeat else floats[at.TOTAL_P]) + work.log_p[c]
            most = log_p + _most_worth(texts, stream, node, texts.columns[c])
            if most == -np.inf or (size == full and most <= work.scores[0]):  # cannot come in: not worth scoring
                continue
            score = log_p + _worth(texts, stream, node, texts.columns[c])
            if size < full:
                _push(work, size, score, h, c)
                size += 1
            elif score > work.scores[0]:
                _replace_worst(work, size, score, h, c)
    return size


@compiled
def _most_worth(texts: Texts, stream: Stream, node: int, column: int) -> float:
    """Bound what a prefix longer by one symbol can be worth, -inf where there is none."""
    letters = stream.nodes_i[node, at.LETTERS]
    most = stream.nodes_f[node, at.SCORE] + texts.weights[KEYTERM_BOOST] * texts.values[0, bias.GAIN]
    if column == SPACE_COLUMN:
        return most - stream.nodes_f[node, at.LOOK] if letters > 0 else -np.inf
    if letters >= MAX_LETTERS:
        return -np.inf
    return float(most + max(0.0, texts.weights[WORD_BONUS])) if letters == 0 else float(most)


@compiled
def _worth(texts: Texts, stream: Stream, node: int, column: int) -> float:
    if column == SPACE_COLUMN:
        return close_word(texts, stream, node)[0]
    return add_letter(texts, stream, node, column)[0]


@compiled
def _push(work: Work, size: int, score: float, origin: int, symbol: int) -> None:
    place = size
    while place > 0 and work.scores[(place - 1) >> 1] > score:
        above = (place - 1) >> 1
        _set(work, place, work.scores[above], work.origins[above], work.symbols[above])
        place = above
    _set(work, place, score, origin, symbol)


@compiled
def _replace_worst(work: Work, size: int, score: float, origin: int, symbol: int) -> None:
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


@compiled
def _replace_hypotheses(texts: Texts, stream: Stream, work: Work, size: int) -> None:
    """Let the candidates take the place of the hypotheses."""
    for h in range(stream.header[at.HYPOTHESES]):
        stream.nodes_i[stream.hypotheses_i[h, at.NODE], at.HYPOTHESIS] = -1
    for place in range(size):
        origin, symbol = work.origins[place], work.symbols[place]
        if symbol == GOES_ON:
            copy_row(work.next_i, place, work.on_i, origin)
            copy_row(work.next_f, place, work.on_f, origin)
        else:
            _write(texts, stream, work, place)
        stream.nodes_i[work.next_i[place, at.NODE], at.HYPOTHESIS] = place
    for place in range(size):
        copy_row(stream.hypotheses_i, place, work.next_i, place)
        copy_row(stream.hypotheses_f, place, work.next_f, place)
    stream.header[at.HYPOTHESES] = size


@compiled
def _write(texts: Texts, stream: Stream, work: Work, place: int) -> None:
    """Make the hypothesis of a candidate that writes a symbol."""
    origin, symbol = work.origins[place], work.symbols[place]
    parent = stream.hypotheses_i[origin, at.NODE]
    log_p, start, last, total = _leave(stream, origin, symbol)
    own = work.log_p[symbol]
    log_p += own
    node = find_child(stream, parent, symbol)
    is_space = texts.columns[symbol] == SPACE_COLUMN
    if node < 0:
        node = add_child(texts, stream, parent, symbol)
        if is_space:
            _stamp(stream, node, start, last, total)
    ints, floats = work.next_i[place], work.next_f[place]
    ints[at.NODE], ints[at.LETTER_START], ints[at.BLANK_START], ints[at.BLANK_LAST] = node, start, start, last
    floats[at.TOTAL_P] = log_p
    floats[at.BLANK_P], floats[at.LETTER_P] = (log_p, -np.inf) if is_space else (-np.inf, log_p)
    floats[at.LETTER_PEAK] = own
    floats[at.LETTER_SUM] = total + own
    floats[at.BLANK_SUM] = 0.0
