"""One frame of prefix beam search: extends each hypothesis, and selects the best ones with different futures.

Source: Graves and Jaitly 2014, CTC prefix search; Amodei et al. 2016 (Deep Speech 2), section 7.3, for the pruning of
symbols.
"""

from __future__ import annotations

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.alignments import extension_of, record_word, score_unextended
from model.ctc.search.bounds import (
    bounds_are_scores,
    highest_begun,
    highest_closed,
    highest_closed_as,
    highest_score,
    highest_with,
    prefix_at,
)
from model.ctc.search.candidates import UNEXTENDED, Work, admit, least_of
from model.ctc.search.layout import Stream, copy_row
from model.ctc.search.prefix_score import (
    MERGES,
    REACH,
    Texts,
    add_letters,
    close_word,
    ways_to_close,
    write_letters,
)
from model.ctc.search.prefix_tree import add_boundary, add_child, find_child
from model.ctc.search.recombination import clear_slots, merged
from model.machine.compiled import ZERO, DoubleArray, compiled, compiled_inline


@compiled
def search_frame(texts: Texts, stream: Stream, work: Work, kept: int, limits: DoubleArray) -> None:
    """Advance the hypotheses by one frame with the `kept` symbols of `keep_symbols`. The tree must have room."""
    reach = limits[REACH]
    size = score_unextended(texts, stream, work, kept)
    size = _extend(texts, stream, work, kept, size, reach)
    if size == 0:  # no alignment is possible: the frame is not a distribution over symbols
        return
    least = work.scores[_best(work, size)] - reach
    merging = limits[MERGES] != 0 and (texts.ranks > 0 or size == work.beams)
    size = _replace_hypotheses(texts, stream, work, size, least, merging)
    best = _best(work, size)
    stream.header[at.BEST], stream.header[at.QUIET] = best, 0
    shift = stream.hypotheses_f[best, at.TOTAL_P]  # only differences matter; this keeps the sums small
    for h in range(size):
        for part in range(at.BLANK_P, at.TOTAL_P + 1):
            stream.hypotheses_f[h, part] -= shift


@compiled
def _best(work: Work, size: int) -> int:
    best = ZERO
    for candidate in range(1, size):
        if work.scores[candidate] > work.scores[best]:
            best = candidate
    return best


@compiled
def _extend(  # noqa: PLR0917 - compiled code has no keywords
    texts: Texts, stream: Stream, work: Work, kept: int, size: int, reach: float
) -> int:
    """Add each hypothesis extended by each kept symbol to the candidates; return their number.

    The worst hypothesis was the first of the heap, so few candidates are replaced if the loop starts from the last one.
    """
    top = work.scores[_best(work, size)] if size > 0 else -np.inf
    exact = bounds_are_scores(texts)
    if texts.ranks > 0:
        _bound_begins(texts, work, kept)
    for h in range(stream.header[at.HYPOTHESES] - 1, -1, -1):
        node, written = int(stream.hypotheses_i[h, at.NODE]), work.written[h]
        total, blank = stream.hypotheses_f[h, at.TOTAL_P], stream.hypotheses_f[h, at.BLANK_P]
        repeat = stream.nodes_i[node, at.SYMBOL]
        prefix = prefix_at(texts, stream, node)
        highest = highest_score(texts, prefix)
        least = least_of(work, size, top - reach)
        for k in range(kept):
            c = work.kept[k]
            if c == texts.blank or (written >> k) & 1:
                continue
            if total + work.log_p[c] + highest <= least:  # the symbols after it are less likely
                break
            log_p = (blank if c == repeat else total) + work.log_p[c]
            score = log_p + highest_with(texts, prefix, c)
            if score <= least:  # cannot be among the best
                continue
            if not (exact and texts.symbols[c, at.ROLE] == at.WRITES and texts.symbols[c, at.COUNT] == 1):
                closes = texts.symbols[c, at.ROLE] == at.SPACE
                score = log_p
                score += close_word(texts, stream, node, 0)[0] if closes else add_letters(texts, stream, node, c)[0]
                if score <= least:
                    continue
            top = max(top, score)
            size = admit(work, size, score, h, c)
            least = least_of(work, size, top - reach)
        if texts.ranks > 0:
            size, top = _begin_words(texts, stream, work, kept, h, size, top, reach)
    return size


@compiled_inline
def _begin_words(  # noqa: PLR0917
    texts: Texts, stream: Stream, work: Work, kept: int, h: int, size: int, top: float, reach: float
) -> tuple[int, float]:
    """Add a hypothesis extended by each kept phone as the first of a new word, for each homophone of the open word.

    Returns the number of candidates and the score of the best one.
    """
    node, least = int(stream.hypotheses_i[h, at.NODE]), least_of(work, size, top - reach)
    total, blank = stream.hypotheses_f[h, at.TOTAL_P], stream.hypotheses_f[h, at.BLANK_P]
    most = total + work.begins[kept]
    if most + highest_closed(texts, stream, node) <= least:
        return size, top
    repeat = stream.nodes_i[node, at.SYMBOL]
    for rank in range(ways_to_close(texts, stream, node)):
        highest = highest_closed_as(texts, stream, node, rank)
        if most + highest <= least:  # with any phone
            continue
        closed, base, waived, state, boundary = False, 0.0, 0.0, ZERO, ZERO - 1
        for k in range(kept):
            c = work.kept[k]
            if total + work.begins[k] + highest <= least:
                continue
            if not closed:
                _, base, waived, _, state = close_word(texts, stream, node, rank)
                boundary, closed = find_child(stream, node, texts.boundary + rank), True
            if boundary >= 0:
                child = find_child(stream, boundary, c)
                if child >= 0 and stream.nodes_i[child, at.HYPOTHESIS] >= 0:
                    continue
            log_p = (blank if c == repeat else total) + work.log_p[c]
            score = log_p + write_letters(texts, c, base, waived, state, 0, 0, 0.0)[0]
            if score <= least:
                continue
            top = max(top, score)
            code = c + (rank + 1) * texts.boundary
            size = admit(work, size, score, h, code)
            least = least_of(work, size, top - reach)
    return size, top


@compiled
def _bound_begins(texts: Texts, work: Work, kept: int) -> None:
    """Write the most that each kept phone adds to a score as first of a word, and last the maximum of these."""
    work.begins[kept] = -np.inf
    for k in range(kept):
        c = work.kept[k]
        work.begins[k] = -np.inf if c == texts.blank else work.log_p[c] + highest_begun(texts, c)
        work.begins[kept] = max(work.begins[kept], work.begins[k])


@compiled
def _replace_hypotheses(  # noqa: PLR0917
    texts: Texts, stream: Stream, work: Work, size: int, least: float, merging: bool
) -> int:
    """Replace the hypotheses by the candidates that score at least `least`, and merge those with the same future.

    Writes the `scores` of the new hypotheses and returns their number.
    """
    for h in range(stream.header[at.HYPOTHESES]):
        stream.nodes_i[stream.hypotheses_i[h, at.NODE], at.HYPOTHESIS] = -1
    if merging:
        clear_slots(work)
    place = ZERO
    for candidate in range(size):
        if work.scores[candidate] < least:
            continue
        if work.symbols[candidate] == UNEXTENDED:
            copy_row(work.next_i, place, work.on_i, work.origins[candidate], at.HYPOTHESIS_INTS)
            copy_row(work.next_f, place, work.on_f, work.origins[candidate], at.HYPOTHESIS_FLOATS)
        else:
            _write(texts, stream, work, candidate, place)
        work.scores[place] = work.scores[candidate]
        if not (merging and merged(stream, work, place)):
            place += 1
    for h in range(place):
        stream.nodes_i[work.next_i[h, at.NODE], at.HYPOTHESIS] = h
        copy_row(stream.hypotheses_i, h, work.next_i, h, at.HYPOTHESIS_INTS)
        copy_row(stream.hypotheses_f, h, work.next_f, h, at.HYPOTHESIS_FLOATS)
    stream.header[at.HYPOTHESES] = place
    return place


@compiled_inline
def _write(texts: Texts, stream: Stream, work: Work, candidate: int, place: int) -> None:
    """Write the hypothesis of a candidate with a new symbol to row `place`."""
    origin, code = work.origins[candidate], work.symbols[candidate]
    rank, symbol = code // texts.boundary - 1, code % texts.boundary
    parent = stream.hypotheses_i[origin, at.NODE]
    log_p, start, last, total = extension_of(stream, origin, symbol)
    own = work.log_p[symbol]
    log_p += own
    role = texts.symbols[symbol, at.ROLE]
    is_space = role == at.SPACE
    closes = rank >= 0 or (role == at.BEGINS and stream.nodes_i[parent, at.LETTERS] > 0)
    if closes:
        parent = add_boundary(texts, stream, parent, max(ZERO, rank))
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
    floats[at.OWN_SHARE] = stream.hypotheses_f[origin, at.OWN_SHARE]
