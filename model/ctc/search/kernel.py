"""Entry points of the beam search: compiled functions over blocks of memory, for one stream or a batch."""

from __future__ import annotations

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.alignments import advance_by_blank
from model.ctc.search.candidates import Work, keep_symbols, work_at, work_longs
from model.ctc.search.frame_search import search_frame
from model.ctc.search.layout import Stream, stream_at, tree_nodes
from model.ctc.search.logs import add_logs, exp
from model.ctc.search.prefix_score import (
    KEPT_SHARE,
    Setup,
    Texts,
    best_rank,
    close_word,
    ended_score,
    texts_of,
    word_of,
)
from model.ctc.search.prefix_tree import (
    add_child,
    commit,
    commit_shared,
    compact,
    find_child,
    first_boundary,
    keep_descendants,
    make_room,
    plant_root,
    score_child,
    write_words,
)
from model.machine.compiled import ZERO, DoubleArray, FloatArray, IntArray, LongArray, compiled, entry_point
from model.machine.pointers import address_of

# columns of a report, int64
REPORT_FRAMES, REPORT_SILENCE, REPORT_CHANGES, REPORT_TEXT, REPORT_WORDS = range(5)
REPORT = 5

NEAR = 4.0  # nats: hypotheses with less of the best one's weight, 2 %, are left out of `write_agreement`
HASH_BASE = 1_000_003

Table = tuple[int, int, int]  # of a `Bias`


@entry_point
def start_stream(address: int, skip: int, lm_state: int, terms: Table, setup: Setup) -> None:
    """Initialize the zeroed block at `address` as a new stream."""
    stream = stream_at(address, setup.beams)
    stream.header[at.SKIP] = skip
    _point_to(stream, terms)
    _begin(stream, setup.blank, lm_state, ZERO - 1)


@entry_point
def advance_streams(
    addresses: LongArray, log_probs: FloatArray, span: tuple[int, int], setup: Setup, report: LongArray
) -> None:
    """Decode the frames first … end - 1 of log_probs (B, T, V), row b for the stream at `addresses[b]`.

    Writes `report` (B, REPORT).
    """
    memory = np.empty(work_longs(setup.beams, log_probs.shape[2]), np.int64)
    work = work_at(address_of(memory), setup.beams, log_probs.shape[2])
    limits = at.doubles(address_of(setup.limits))
    for b in range(len(addresses)):
        stream = stream_at(addresses[b], setup.beams)
        texts = texts_of(setup, stream.header)
        for t in range(span[0], span[1]):
            if stream.header[at.SKIP] > 0:
                stream.header[at.SKIP] -= 1
            else:
                _advance(texts, stream, work, log_probs[b, t], limits)
        _report(stream, report[b])
    memory[0] = 0  # allocated until here


@compiled
def _advance(texts: Texts, stream: Stream, work: Work, row: FloatArray, limits: DoubleArray) -> None:
    header = stream.header
    if (
        limits[KEPT_SHARE] < 1.0
        and np.inf > row[texts.blank]
        and exp(np.float64(row[texts.blank])) >= limits[KEPT_SHARE]
    ):  # `keep_symbols` would keep the blank alone
        advance_by_blank(stream)
    else:
        beams = work.beams
        if header[at.NODES] + beams * texts.growth > tree_nodes(beams):
            make_room(stream, work.moved)
        before = stream.hypotheses_i[header[at.BEST], at.NODE]
        kept = keep_symbols(texts, row, limits, work)
        search_frame(texts, stream, work, kept, limits)
        if stream.hypotheses_i[header[at.BEST], at.NODE] != before:
            header[at.CHANGES] += 1
        commit_shared(stream)
    header[at.FRAMES] += 1


@entry_point
def write_best(address: int, setup: Setup) -> int:
    """Write the words of the best hypothesis, the open one last; return their number. The state is unchanged."""
    stream = stream_at(address, setup.beams)
    return _write_path(texts_of(setup, stream.header), stream, stream.header[at.BEST], False)


@entry_point
def take_words(address: int, beams: int, count: int, report: LongArray) -> None:
    """Commit the first `count` closed words of the best hypothesis, and drop the hypotheses with other words."""
    stream = stream_at(address, beams)
    node = first_boundary(stream, stream.hypotheses_i[stream.header[at.BEST], at.NODE], count)
    if node >= 0:
        keep_descendants(stream, node)
        commit(stream, node)
    _report(stream, report)


@entry_point
def take_text(address: int, ended: bool, setup: Setup, report: LongArray) -> int:
    """Write the words of the best hypothesis, or of the best one if the text ends here, and restart after it.

    Returns the number of words. Nothing changes if there are no words and none were shown.
    """
    stream = stream_at(address, setup.beams)
    texts = texts_of(setup, stream.header)
    best = _best_ended(texts, stream) if ended else stream.header[at.BEST]
    words = _write_path(texts, stream, best, ended)
    if words > 0 or stream.hypotheses_i[stream.header[at.BEST], at.NODE] != stream.header[at.ROOT]:
        _restart(texts, stream, best, ended)
    _report(stream, report)
    return words


@entry_point
def write_agreement(address: int, setup: Setup, shares: DoubleArray) -> int:
    """Write the share of the weight that agrees up to each open word of the best hypothesis; return their number.

    A hypothesis agrees if its words are the same ones. Its weight is the probability of its text if that ends here. At
    most `len(shares)` words are compared.
    """
    stream = stream_at(address, setup.beams)
    texts = texts_of(setup, stream.header)
    count = min(_write_path(texts, stream, stream.header[at.BEST], False), len(shares))
    keys, others = np.empty(count, np.int64), np.empty(count, np.int64)
    _write_keys(stream, count, keys)
    for word in range(count):
        shares[word] = 0.0
    hypotheses = stream.header[at.HYPOTHESES]
    scores, most, total = np.empty(hypotheses, np.float64), -np.inf, 0.0
    for h in range(hypotheses):
        scores[h] = _score_ended(texts, stream, h)
        most = max(most, scores[h])
    for h in range(hypotheses):
        if scores[h] > -np.inf and scores[h] >= most - NEAR:
            weight = exp(scores[h] - most)
            total += weight
            words = min(_write_path(texts, stream, h, True), count)
            _write_keys(stream, words, others)
            word = 0
            while word < words and others[word] == keys[word]:
                shares[word] += weight
                word += 1
    for word in range(count):
        shares[word] = shares[word] / total if total > 0.0 else 0.0
    return int(count)


@entry_point
def set_terms(address: int, terms: Table, setup: Setup) -> None:
    """Replace a stream's key terms and rescore the text in the tree with the new ones."""
    stream = stream_at(address, setup.beams)
    _point_to(stream, terms)
    texts = texts_of(setup, stream.header)
    moved = np.empty(tree_nodes(setup.beams), np.int32)
    compact(stream, at.ints(address_of(moved)))
    moved[0] = 0  # allocated until here
    stream.nodes_i[0, at.BIAS_STATE] = 0
    stream.nodes_f[0, at.WAIVED] = 0.0
    stream.nodes_f[0, at.SCORE] = stream.nodes_f[0, at.BASE]
    for node in range(1, stream.header[at.NODES]):
        score_child(texts, stream, node)


@entry_point
def regrow(address: int, terms: Table, parents: IntArray, symbols: IntArray, setup: Setup) -> None:
    """Rebuild a stream's tree after `write_root` from `parents` and `symbols` (N - 1,) of all nodes but the root."""
    stream = stream_at(address, setup.beams)
    _point_to(stream, terms)
    texts = texts_of(setup, stream.header)
    stream.header[at.NODES] = 1
    for i in range(len(parents)):
        add_child(texts, stream, parents[i], symbols[i])


@compiled
def _point_to(stream: Stream, terms: Table) -> None:
    header = stream.header
    header[at.BIAS_STATES], header[at.BIAS_INTS], header[at.BIAS_FLOATS] = terms


@compiled
def _begin(stream: Stream, symbol: int, lm_state: int, last: int) -> None:
    """Start from one hypothesis, the empty prefix after a blank; `symbol` was written before, last in frame `last`."""
    plant_root(stream, symbol, lm_state)
    stream.header[at.HYPOTHESES], stream.header[at.BEST], stream.header[at.QUIET] = 1, 0, 0
    ints, floats = stream.hypotheses_i, stream.hypotheses_f
    for column in range(at.HYPOTHESIS_INTS):
        ints[0, column] = 0
    ints[0, at.BLANK_LAST] = last
    for column in range(at.HYPOTHESIS_FLOATS):
        floats[0, column] = 0.0
    floats[0, at.LETTER_P] = -np.inf


@compiled
def _restart(texts: Texts, stream: Stream, hypothesis: int, ended: bool) -> None:
    """Restart after the text of one hypothesis, so that a letter that still continues is not written again."""
    node = stream.hypotheses_i[hypothesis, at.NODE]
    symbol, lm_state = int(stream.nodes_i[node, at.SYMBOL]), int(stream.nodes_i[node, at.LM_STATE])
    if stream.nodes_i[node, at.LETTERS] > 0:
        _, _, _, lm_state, _ = close_word(texts, stream, node, best_rank(texts, stream, node, ended))
    blank, letter = stream.hypotheses_f[hypothesis, at.BLANK_P], stream.hypotheses_f[hypothesis, at.LETTER_P]
    _begin(stream, symbol, lm_state, int(stream.hypotheses_i[hypothesis, at.BLANK_LAST]))
    shift = add_logs(blank, letter)
    stream.hypotheses_f[0, at.BLANK_P], stream.hypotheses_f[0, at.LETTER_P] = blank - shift, letter - shift


@compiled
def _report(stream: Stream, row: LongArray) -> None:
    """Fill the report and reset the count of written words, which the caller fetches."""
    header, best = stream.header, stream.header[at.BEST]
    row[REPORT_FRAMES], row[REPORT_CHANGES] = header[at.FRAMES], header[at.CHANGES]
    row[REPORT_SILENCE] = header[at.FRAMES] - 1 - _last_letter(stream, best)
    row[REPORT_TEXT] = 1 if stream.hypotheses_i[best, at.NODE] != header[at.ROOT] else 0
    row[REPORT_WORDS] = header[at.OUT_WORDS]
    header[at.OUT_WORDS] = header[at.OUT_SYMBOLS] = 0


@compiled
def _best_ended(texts: Texts, stream: Stream) -> int:
    """Return the hypothesis with the best text if it ends here; a final space is ignored."""
    best, most = stream.header[at.BEST], -np.inf
    for h in range(stream.header[at.HYPOTHESES]):
        score = _score_ended(texts, stream, h)
        if score > most:
            best, most = h, score
    return int(best)


@compiled
def _score_ended(texts: Texts, stream: Stream, h: int) -> float:
    """Score of a hypothesis if the text ends here; -inf if its variant with or without a final space counts."""
    node, total = stream.hypotheses_i[h, at.NODE], stream.hypotheses_f[h, at.TOTAL_P]
    score = total + ended_score(texts, stream, node)
    other = -1
    if stream.nodes_i[node, at.LETTERS] > 0:
        other = _alive(stream, find_child(stream, node, texts.space))
    elif node != stream.header[at.ROOT]:
        other = _alive(stream, stream.nodes_i[node, at.PARENT])
    if other >= 0:
        others = stream.hypotheses_f[other, at.TOTAL_P]
        if others > total:  # that one represents both, whose scores differ by rounding only
            return float(-np.inf)
        score += add_logs(total, others) - total
    return float(score)


@compiled
def _alive(stream: Stream, node: int) -> int:
    return int(stream.nodes_i[node, at.HYPOTHESIS]) if node >= 0 else -1


@compiled
def _write_keys(stream: Stream, count: int, keys: LongArray) -> None:
    """Write a number for each of the first `count` written words: its own, or one below 0 made of its symbols."""
    symbol = 0
    for word in range(count):
        key = np.int64(0)
        for _ in range(stream.out_words[word, at.OUT_PIECES]):
            key = key * HASH_BASE + stream.out_symbols[symbol] + 1
            symbol += 1
        known = np.int64(stream.out_words[word, at.OUT_WORD])
        keys[word] = known if known >= 0 else -1 - abs(key)


@compiled
def _in_letter(stream: Stream, hypothesis: int) -> bool:
    floats = stream.hypotheses_f[hypothesis]
    return bool(floats[at.LETTER_P] > floats[at.BLANK_P])


@compiled
def _last_letter(stream: Stream, hypothesis: int) -> int:
    """Return the last frame of the last letter, -1 if there is none yet."""
    if _in_letter(stream, hypothesis):
        return int(stream.header[at.FRAMES] - 1)
    return int(stream.hypotheses_i[hypothesis, at.BLANK_LAST])


@compiled
def _write_path(texts: Texts, stream: Stream, hypothesis: int, ended: bool) -> int:
    """Write the words of a hypothesis after the committed ones, the open one last; return their number."""
    ints, node = stream.nodes_i, stream.hypotheses_i[hypothesis, at.NODE]
    boundary, below, count = int(node), ZERO - 1, ZERO
    while ints[boundary, at.LETTERS] > 0:
        below, boundary = boundary, int(ints[boundary, at.PARENT])
        count += 1
    words = write_words(stream, boundary, below)
    if count == 0:
        return words
    spelling = int(ints[node, at.SPELLING])
    rank = best_rank(texts, stream, int(node), ended)
    symbols = 0
    for word in range(words):
        symbols += stream.out_words[word, at.OUT_PIECES]
    for i in range(symbols + count - 1, symbols - 1, -1):
        stream.out_symbols[i] = ints[node, at.SYMBOL]
        node = ints[node, at.PARENT]
    sounding = _in_letter(stream, hypothesis)
    start = at.LETTER_START if sounding else at.BLANK_START
    stream.out_words[words, at.OUT_START] = stream.hypotheses_i[hypothesis, start]
    stream.out_words[words, at.OUT_LAST] = _last_letter(stream, hypothesis)
    stream.out_words[words, at.OUT_PIECES] = count
    stream.out_words[words, at.OUT_WORD] = word_of(texts, spelling, rank) if texts.ranks > 0 else -1
    stream.out_sums[words] = stream.hypotheses_f[hypothesis, at.LETTER_SUM if sounding else at.BLANK_SUM]
    return words + 1
