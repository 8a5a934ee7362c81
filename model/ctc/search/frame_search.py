"""One frame of prefix beam search: extensions of each hypothesis, and the best of them.

Source: Graves and Jaitly 2014, CTC prefix search; Amodei et al. 2016 (Deep Speech 2), section 7.3, for the pruning of
symbols.
"""

from __future__ import annotations

import numpy as np

from model.compiled import compiled, compiled_inline
from model.ctc.search import layout as at
from model.ctc.search.alignments import extension_of, record_word, score_unextended
from model.ctc.search.candidates import UNEXTENDED, Work, push, replace_worst
from model.ctc.search.layout import MAX_LETTERS, Stream, copy_row
from model.ctc.search.prefix_score import KEYTERM_BOOST, WORD_BONUS, Texts, add_letters, close_word
from model.ctc.search.prefix_tree import add_boundary, add_child, find_child


@compiled
def search_frame(texts: Texts, stream: Stream, work: Work, kept: int) -> None:
    """Advance the hypotheses by one frame with the `kept` symbols of `keep_symbols`. The tree must have room."""
    size = score_unextended(texts, stream, work, kept)
    size = _extend(texts, stream, work, kept, size)
    if size == 0:  # no alignment is possible: the frame is no distribution over symbols
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
def _extend(texts: Texts, stream: Stream, work: Work, kept: int, size: int) -> int:
    """Add each hypothesis extended by each kept symbol to the candidates; return their number."""
    full = len(work.scores)
    for h in range(stream.header[at.HYPOTHESES]):
        floats, node = stream.hypotheses_f[h], stream.hypotheses_i[h, at.NODE]
        repeat = stream.nodes_i[node, at.SYMBOL]
        for k in range(kept):
            c = work.kept[k]
            if c == texts.blank or (work.written[h] >> k) & 1:
                continue
            log_p = (floats[at.BLANK_P] if c == repeat else floats[at.TOTAL_P]) + work.log_p[c]
            most = log_p + _highest_score(texts, stream, node, c)
            if most == -np.inf or (size == full and most <= work.scores[0]):  # cannot be among the best: not scored
                continue
            score = log_p + _score(texts, stream, node, c)
            if size < full:
                push(work, size, score, h, c)
                size += 1
            elif score > work.scores[0]:
                replace_worst(work, size, score, h, c)
    return size


@compiled
def _highest_score(texts: Texts, stream: Stream, node: int, symbol: int) -> float:
    """Upper bound of the score of a prefix extended by one symbol, -inf where there is none."""
    letters, role = stream.nodes_i[node, at.LETTERS], texts.symbols[symbol, at.ROLE]
    gain = texts.weights[KEYTERM_BOOST] * texts.values[0, at.TERM_GAIN]
    most = stream.nodes_f[node, at.SCORE] + gain * texts.symbols[symbol, at.COUNT]
    if role == at.SPACE:
        return most - stream.nodes_f[node, at.LOOK] if letters > 0 else -np.inf
    if role == at.BEGINS and letters > 0:
        return float(most + gain - stream.nodes_f[node, at.LOOK] + max(0.0, texts.weights[WORD_BONUS]))
    if letters >= MAX_LETTERS:
        return -np.inf
    return float(most + max(0.0, texts.weights[WORD_BONUS])) if letters == 0 else float(most)


@compiled
def _score(texts: Texts, stream: Stream, node: int, symbol: int) -> float:
    if texts.symbols[symbol, at.ROLE] == at.SPACE:
        return close_word(texts, stream, node)[0]
    return add_letters(texts, stream, node, symbol)[0]


@compiled
def _replace_hypotheses(texts: Texts, stream: Stream, work: Work, size: int) -> None:
    """Replace the hypotheses by the candidates."""
    for h in range(stream.header[at.HYPOTHESES]):
        stream.nodes_i[stream.hypotheses_i[h, at.NODE], at.HYPOTHESIS] = -1
    for place in range(size):
        origin, symbol = work.origins[place], work.symbols[place]
        if symbol == UNEXTENDED:
            copy_row(work.next_i, place, work.on_i, origin)
            copy_row(work.next_f, place, work.on_f, origin)
        else:
            _write(texts, stream, work, place)
        stream.nodes_i[work.next_i[place, at.NODE], at.HYPOTHESIS] = place
    for place in range(size):
        copy_row(stream.hypotheses_i, place, work.next_i, place)
        copy_row(stream.hypotheses_f, place, work.next_f, place)
    stream.header[at.HYPOTHESES] = size


@compiled_inline
def _write(texts: Texts, stream: Stream, work: Work, place: int) -> None:
    """Make the hypothesis of a candidate with a new symbol."""
    origin, symbol = work.origins[place], work.symbols[place]
    parent = stream.hypotheses_i[origin, at.NODE]
    log_p, start, last, total = extension_of(stream, origin, symbol)
    own = work.log_p[symbol]
    log_p += own
    role = texts.symbols[symbol, at.ROLE]
    is_space = role == at.SPACE
    closes = role == at.BEGINS and stream.nodes_i[parent, at.LETTERS] > 0
    if closes:
        parent = add_boundary(texts, stream, parent)
    node = find_child(stream, parent, symbol)
    if node < 0:
        node = add_child(texts, stream, parent, symbol)
        if is_space or closes:
            record_word(stream, node, start, last, total)
    if closes:
        start, total = int(stream.header[at.FRAMES]), 0.0
    ints, floats = work.next_i[place], work.next_f[place]
    ints[at.NODE], ints[at.LETTER_START], ints[at.BLANK_START], ints[at.BLANK_LAST] = node, start, start, last
    floats[at.TOTAL_P] = log_p
    floats[at.BLANK_P], floats[at.LETTER_P] = (log_p, -np.inf) if is_space else (-np.inf, log_p)
    floats[at.LETTER_PEAK] = own
    floats[at.LETTER_SUM] = total + own
    floats[at.BLANK_SUM] = 0.0
