"""Tree of prefixes of one stream: growth, commitment of the text that all hypotheses share, limits.

Scores come from `prefix_score`; `frame_search` decides which prefixes are alive. A node is a symbol, with all letters
that it writes. If a piece begins a word after another word, a boundary node is put between the two, so that every
closed word ends in a node without open letters, by which it is shared and committed.
"""

from __future__ import annotations

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.layout import Stream, copy_row, tree_nodes
from model.ctc.search.prefix_score import Texts, add_letters, close_word, word_of
from model.machine.compiled import ZERO, IntArray, compiled, compiled_inline


@compiled_inline
def find_child(stream: Stream, node: int, symbol: int) -> int:
    """Return the prefix extended by `symbol`, -1 if it is not in the tree."""
    ints = stream.nodes_i
    child = ints[node, at.CHILD]
    while child >= 0 and ints[child, at.SYMBOL] != symbol:
        child = ints[child, at.SIBLING]
    return int(child)


@compiled
def add_child(texts: Texts, stream: Stream, node: int, symbol: int) -> int:
    """Add the prefix extended by `symbol`. The tree must have room."""
    ints = stream.nodes_i
    child = stream.header[at.NODES]
    stream.header[at.NODES] = child + 1
    ints[child, at.PARENT] = node
    ints[child, at.SYMBOL] = symbol
    ints[child, at.CHILD] = -1
    ints[child, at.SIBLING] = ints[node, at.CHILD]
    ints[node, at.CHILD] = child
    ints[child, at.DEPTH] = ints[node, at.DEPTH] + 1
    ints[child, at.HYPOTHESIS] = -1
    score_child(texts, stream, child)
    return int(child)


@compiled
def add_boundary(texts: Texts, stream: Stream, node: int, rank: int) -> int:
    """Return the boundary after a prefix, shared by all symbols that begin the next word; add it if there is none.

    Homophones have separate boundaries, by rank.
    """
    symbol = texts.boundary + rank
    child = find_child(stream, node, symbol)
    if child < 0:
        child = add_child(texts, stream, node, symbol)
        stream.nodes_i[child, at.WORD_START] = at.RECORDED_BELOW
    return child


@compiled
def score_child(texts: Texts, stream: Stream, child: int) -> None:
    """Compute the scores of a prefix from those of its parent."""
    ints, floats = stream.nodes_i, stream.nodes_f
    node = ints[child, at.PARENT]
    symbol = ints[child, at.SYMBOL]
    if texts.symbols[symbol, at.ROLE] == at.SPACE:
        rank = max(0, int(symbol) - texts.boundary)
        score, base, waived, lm_state, state = close_word(texts, stream, node, rank)
        ints[child, at.WORD] = word_of(texts, int(ints[node, at.SPELLING]), rank) if texts.ranks > 0 else -1
        ints[child, at.LETTERS], ints[child, at.SPELLING], floats[child, at.LOOK] = 0, 0, 0.0
    else:
        score, base, look, waived, spelling, state, letters = add_letters(texts, stream, node, symbol)
        lm_state = ints[node, at.LM_STATE]
        ints[child, at.LETTERS] = letters
        ints[child, at.SPELLING], floats[child, at.LOOK], floats[child, at.OTHERS] = spelling, look, np.nan
    floats[child, at.SCORE], floats[child, at.BASE], floats[child, at.WAIVED] = score, base, waived
    ints[child, at.LM_STATE], ints[child, at.BIAS_STATE] = lm_state, state
    floats[child, at.CLOSING] = np.nan


@compiled
def plant_root(stream: Stream, symbol: int, lm_state: int) -> None:
    """Start a tree with one empty prefix. A first letter equal to `symbol` needs a blank before it."""
    ints, floats = stream.nodes_i, stream.nodes_f
    stream.header[at.NODES], stream.header[at.ROOT] = 1, 0
    for column in range(at.NODE_INTS):
        ints[0, column] = 0
    ints[0, at.PARENT] = ints[0, at.CHILD] = ints[0, at.SIBLING] = -1
    ints[0, at.SYMBOL], ints[0, at.LM_STATE] = symbol, lm_state
    for column in range(at.NODE_FLOATS):
        floats[0, column] = 0.0
    floats[0, at.CLOSING] = np.nan


@compiled
def commit_shared(stream: Stream) -> None:
    """Commit the words that all hypotheses share: they can no longer change."""
    root, h = int(stream.header[at.ROOT]), ZERO
    shared = _boundary_above(stream, int(stream.hypotheses_i[0, at.NODE]))
    while shared != root:
        h += 1
        if h == stream.header[at.HYPOTHESES]:
            commit(stream, shared)
            return
        shared = _shared_boundary(stream, shared, int(stream.hypotheses_i[h, at.NODE]))


@compiled_inline
def _boundary_above(stream: Stream, node: int) -> int:
    """Return the last node without open letters on the way to a prefix."""
    while stream.nodes_i[node, at.LETTERS] > 0:
        node = int(stream.nodes_i[node, at.PARENT])
    return node


@compiled_inline
def _shared_boundary(stream: Stream, boundary: int, node: int) -> int:
    """Return the last node without open letters on the ways to a boundary and to a prefix."""
    ints, depth = stream.nodes_i, stream.nodes_i[boundary, at.DEPTH]
    while ints[node, at.DEPTH] > depth:
        node = int(ints[node, at.PARENT])
    if node == boundary:
        return boundary
    while boundary != node:
        if ints[boundary, at.DEPTH] > ints[node, at.DEPTH]:
            boundary = int(ints[boundary, at.PARENT])
        else:
            node = int(ints[node, at.PARENT])
    return _boundary_above(stream, boundary)


@compiled
def commit(stream: Stream, node: int) -> None:
    """Make the word boundary `node` the root and write the words before it. All hypotheses must extend it."""
    below, known = ZERO - 1, stream.hypotheses_i[stream.header[at.BEST], at.NODE]
    while known != node:
        below, known = int(known), stream.nodes_i[known, at.PARENT]
    write_words(stream, node, below)
    header = stream.header
    ints, root, known = stream.nodes_i, header[at.ROOT], node
    while known != root:
        if ints[known, at.LETTERS] == 0:
            header[at.OUT_WORDS] += 1
        else:
            header[at.OUT_SYMBOLS] += 1
        known = ints[known, at.PARENT]
    header[at.ROOT] = node
    ints[node, at.PARENT] = -1


@compiled
def write_words(stream: Stream, node: int, below: int) -> int:
    """Write the closed words from the root to `node` after the committed ones; return their number.

    `below` is the node after `node` in the hypothesis, -1 if there is none.
    """
    header, ints, root = stream.header, stream.nodes_i, stream.header[at.ROOT]
    words, letters, known = 0, 0, node
    while known != root:
        if ints[known, at.LETTERS] == 0:
            words += 1
        else:
            letters += 1
        known = ints[known, at.PARENT]
    word, symbol = header[at.OUT_WORDS] + words, header[at.OUT_SYMBOLS] + letters
    while node != root:
        if ints[node, at.LETTERS] == 0:
            word -= 1
            record = below if ints[node, at.WORD_START] == at.RECORDED_BELOW else node
            stream.out_words[word, at.OUT_START] = ints[record, at.WORD_START]
            stream.out_words[word, at.OUT_LAST] = ints[record, at.WORD_LAST]
            stream.out_words[word, at.OUT_PIECES] = 0
            stream.out_words[word, at.OUT_WORD] = ints[node, at.WORD]
            stream.out_sums[word] = stream.nodes_f[record, at.WORD_SUM]
        else:
            symbol -= 1
            stream.out_symbols[symbol] = ints[node, at.SYMBOL]
            stream.out_words[word, at.OUT_PIECES] += 1
        below, node = int(node), ints[node, at.PARENT]
    return words


@compiled
def compact(stream: Stream, moved: IntArray) -> None:
    """Remove the nodes that no hypothesis extends. `moved` (nodes,) is scratch memory."""
    header, ints, floats = stream.header, stream.nodes_i, stream.nodes_f
    used, root = header[at.NODES], header[at.ROOT]
    for node in range(used):
        moved[node] = -1
    for h in range(header[at.HYPOTHESES]):
        node = stream.hypotheses_i[h, at.NODE]
        while node >= 0 and moved[node] < 0:
            moved[node] = 0
            node = ints[node, at.PARENT]
    moved[root] = 0
    kept = ZERO
    for node in range(used):  # parents precede their children, and no node moves to a later row
        if moved[node] < 0:
            continue
        moved[node] = kept
        copy_row(ints, kept, ints, node, at.NODE_INTS)
        copy_row(floats, kept, floats, node, at.NODE_FLOATS)
        ints[kept, at.CHILD] = ints[kept, at.SIBLING] = -1
        if node != root:
            parent = moved[ints[kept, at.PARENT]]
            ints[kept, at.PARENT] = parent
            ints[kept, at.SIBLING] = ints[parent, at.CHILD]
            ints[parent, at.CHILD] = kept
        kept += 1
    header[at.NODES], header[at.ROOT] = kept, moved[root]
    for h in range(header[at.HYPOTHESES]):
        stream.hypotheses_i[h, at.NODE] = moved[stream.hypotheses_i[h, at.NODE]]


@compiled
def make_room(stream: Stream, moved: IntArray) -> None:
    """Free rows for at least two frames: drop dead nodes, else force the best first word, else drop hypotheses."""
    beams = stream.beams
    compact(stream, moved)
    while stream.header[at.NODES] + 4 * beams > tree_nodes(beams):
        first = first_boundary(stream, stream.hypotheses_i[stream.header[at.BEST], at.NODE], ZERO + 1)
        if first >= 0:
            keep_descendants(stream, first)
            commit(stream, first)
        else:
            _drop_worst(stream)
        compact(stream, moved)


@compiled
def first_boundary(stream: Stream, node: int, count: int) -> int:
    """Return the ancestor of `node` (or itself) that closes the `count`-th word after the root, -1 if there is none."""
    ints, root = stream.nodes_i, stream.header[at.ROOT]
    closed, known = 0, node
    while known != root:
        if ints[known, at.LETTERS] == 0:
            closed += 1
        known = ints[known, at.PARENT]
    while node != root:
        if ints[node, at.LETTERS] == 0:
            if closed == count:
                return node
            closed -= 1
        node = ints[node, at.PARENT]
    return -1


@compiled
def keep_descendants(stream: Stream, node: int) -> None:
    """Drop the hypotheses that do not extend `node`; the best one must extend it."""
    ints, h = stream.nodes_i, ZERO
    while h < stream.header[at.HYPOTHESES]:
        known = stream.hypotheses_i[h, at.NODE]
        while ints[known, at.DEPTH] > ints[node, at.DEPTH]:
            known = ints[known, at.PARENT]
        if known == node:
            h += 1
        else:
            drop(stream, h)


@compiled
def drop(stream: Stream, hypothesis: int) -> None:
    """Remove one hypothesis that is not the best; the last one moves to its row."""
    header, last = stream.header, stream.header[at.HYPOTHESES] - 1
    stream.nodes_i[stream.hypotheses_i[hypothesis, at.NODE], at.HYPOTHESIS] = -1
    if hypothesis != last:
        copy_row(stream.hypotheses_i, hypothesis, stream.hypotheses_i, last, at.HYPOTHESIS_INTS)
        copy_row(stream.hypotheses_f, hypothesis, stream.hypotheses_f, last, at.HYPOTHESIS_FLOATS)
        stream.nodes_i[stream.hypotheses_i[hypothesis, at.NODE], at.HYPOTHESIS] = hypothesis
        if header[at.BEST] == last:
            header[at.BEST] = hypothesis
    header[at.HYPOTHESES] = last


@compiled
def _drop_worst(stream: Stream) -> None:
    best = worst = stream.header[at.BEST]
    lowest = np.inf
    for h in range(stream.header[at.HYPOTHESES]):
        score = stream.hypotheses_f[h, at.TOTAL_P] + stream.nodes_f[stream.hypotheses_i[h, at.NODE], at.SCORE]
        if h != best and (worst == best or score < lowest):
            worst, lowest = h, score
    drop(stream, worst)
