"""Probability of a hypothesis after a frame: over alignments that keep its prefix, or extend a shorter one to it.

Alignments that end in blank and in a letter are summed separately; if two alignments reach the same prefix, the
likelier one determines the times of its letters. Source: Graves and Jaitly 2014, CTC prefix search.
"""

from __future__ import annotations

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.candidates import UNEXTENDED, Work, push
from model.ctc.search.layout import MAX_LETTERS, Stream, copy_row
from model.ctc.search.logs import add_logs
from model.ctc.search.prefix_score import Texts
from model.machine.compiled import ZERO, DoubleArray, IntArray, compiled, compiled_inline


@compiled
def advance_by_blank(stream: Stream) -> None:
    """Advance the hypotheses by a frame of certain blank, which does not change their order."""
    if stream.header[at.QUIET]:
        return
    ints, floats = stream.hypotheses_i, stream.hypotheses_f
    for h in range(stream.header[at.HYPOTHESES]):
        end_in_blank(ints[h], floats[h], stream.header[at.FRAMES])
        floats[h, at.BLANK_P], floats[h, at.LETTER_P] = floats[h, at.TOTAL_P], -np.inf
    stream.header[at.QUIET] = 1


@compiled_inline
def end_in_blank(ints: IntArray, floats: DoubleArray, frame: int) -> None:
    """Copy the letter record of a hypothesis to its blank record if it is likelier, before both are summed."""
    if floats[at.LETTER_P] > floats[at.BLANK_P]:
        ints[at.BLANK_START], ints[at.BLANK_LAST] = ints[at.LETTER_START], frame - 1
        floats[at.BLANK_SUM] = floats[at.LETTER_SUM]


@compiled
def score_unextended(texts: Texts, stream: Stream, work: Work, kept: int) -> int:
    """Score the hypotheses with unchanged prefixes, by repeats, blanks or shorter ones; return their number."""
    count = stream.header[at.HYPOTHESES]
    for h in range(count):
        work.written[h] = 0
        copy_row(work.on_i, h, stream.hypotheses_i, h, at.HYPOTHESIS_INTS)
        copy_row(work.on_f, h, stream.hypotheses_f, h, at.HYPOTHESIS_FLOATS)
        ints, floats = work.on_i[h], work.on_f[h]
        symbol = stream.nodes_i[ints[at.NODE], at.SYMBOL]
        end_in_blank(ints, floats, stream.header[at.FRAMES])
        own = work.log_p[symbol] if symbol != texts.blank and texts.symbols[symbol, at.ROLE] != at.SPACE else -np.inf
        again = floats[at.BLANK_P] + own  # the same letter again, after a blank
        floats[at.BLANK_P] = floats[at.TOTAL_P] + _rest_log_p(texts, stream, work, kept, ints[at.NODE])
        if stream.nodes_i[ints[at.NODE], at.LETTERS] >= MAX_LETTERS:
            floats[at.BLANK_P] = add_logs(floats[at.BLANK_P], again)
        floats[at.LETTER_P] += own
        if own > floats[at.LETTER_PEAK]:
            floats[at.LETTER_SUM] += own - floats[at.LETTER_PEAK]
            floats[at.LETTER_PEAK] = own
    for h in range(count):
        _add_from_parent(texts, stream, work, h)
    size = ZERO
    for h in range(count):
        total = add_logs(work.on_f[h, at.BLANK_P], work.on_f[h, at.LETTER_P])
        work.on_f[h, at.TOTAL_P] = total
        score = total + stream.nodes_f[stream.hypotheses_i[h, at.NODE], at.SCORE]
        if score > -np.inf:
            push(work, size, score, h, UNEXTENDED)
            size += 1
    return size


@compiled_inline
def _rest_log_p(texts: Texts, stream: Stream, work: Work, kept: int, node: int) -> float:
    """Return the log-probability of the symbols that do not change a prefix, without a repeat of its letter."""
    rest, letters = work.log_p[texts.blank], stream.nodes_i[node, at.LETTERS]
    if 0 < letters < MAX_LETTERS:
        return float(rest)
    own = stream.nodes_i[node, at.SYMBOL]
    for k in range(kept):
        c = work.kept[k]
        role = texts.symbols[c, at.ROLE]
        stays = role == at.SPACE  # further spaces do not change the text
        if letters > 0:
            stays = role == at.WRITES and c != own
        if stays:
            rest = add_logs(rest, work.log_p[c])
    return float(rest)


@compiled_inline
def _add_from_parent(texts: Texts, stream: Stream, work: Work, h: int) -> None:
    """Add the alignments in which the hypothesis one symbol shorter, if alive, writes that symbol."""
    node = int(stream.hypotheses_i[h, at.NODE])
    parent = stream.nodes_i[node, at.PARENT]
    closes = parent >= 0 and stream.nodes_i[parent, at.SYMBOL] >= texts.boundary
    if closes:
        parent = stream.nodes_i[parent, at.PARENT]
    origin = int(stream.nodes_i[parent, at.HYPOTHESIS]) if parent >= 0 else -1
    symbol = int(stream.nodes_i[node, at.SYMBOL])
    if origin < 0 or work.log_p[symbol] == -np.inf:
        return
    if texts.ranks == 0 or not closes:
        work.written[origin] |= 1 << work.places[symbol]
    ints, floats = work.on_i[h], work.on_f[h]
    log_p, start, last, total = extension_of(stream, origin, symbol)
    log_p += work.log_p[symbol]
    share = stream.hypotheses_f[origin, at.OWN_SHARE]
    if share != floats[at.OWN_SHARE] and log_p > -np.inf:
        before = add_logs(floats[at.BLANK_P], floats[at.LETTER_P])
        own = add_logs(before + floats[at.OWN_SHARE], log_p + share)
        floats[at.OWN_SHARE] = own - add_logs(before, log_p)
    if texts.symbols[symbol, at.ROLE] == at.SPACE:
        if log_p > floats[at.BLANK_P] and stream.nodes_i[node, at.CHILD] < 0:  # else the next word may begin too early
            record_word(stream, node, start, last, total)
            ints[at.BLANK_LAST] = last
        floats[at.BLANK_P] = add_logs(floats[at.BLANK_P], log_p)
    else:
        if log_p > floats[at.LETTER_P]:
            if closes:
                if stream.nodes_i[node, at.CHILD] < 0:
                    record_word(stream, node, start, last, total)
                start, total = int(stream.header[at.FRAMES]), 0.0
            ints[at.LETTER_START] = start
            floats[at.LETTER_PEAK] = work.log_p[symbol]
            floats[at.LETTER_SUM] = total + work.log_p[symbol]
        floats[at.LETTER_P] = add_logs(floats[at.LETTER_P], log_p)


@compiled_inline
def extension_of(stream: Stream, origin: int, symbol: int) -> tuple[float, int, int, float]:
    """Return the log-probability that a hypothesis writes `symbol`, and the start, last frame and sum of its word."""
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
def record_word(stream: Stream, node: int, start: int, last: int, total: float) -> None:
    """Record the word closed by `node`: a space, or a piece that begins the next word."""
    stream.nodes_i[node, at.WORD_START], stream.nodes_i[node, at.WORD_LAST] = start, last
    stream.nodes_f[node, at.WORD_SUM] = total
