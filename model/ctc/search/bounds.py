"""Upper bounds of the scores of longer prefixes, with which the search skips most of them without scoring them.

Expected scores never rise with more letters. Without key terms the expected score with the next letter is cheap and a
tight bound; key terms may add to a score, or refund a deduction.
"""

from __future__ import annotations

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.layout import MAX_LETTERS, Stream
from model.ctc.search.prefix_score import WORD_BONUS, Texts, closing_of_others, expected_score, spell_on
from model.machine.compiled import compiled, compiled_inline


@compiled_inline
def highest_score(texts: Texts, stream: Stream, node: int) -> float:
    """Upper bound of the score of a prefix extended by any symbol (of phones: one that does not begin a word)."""
    floats = stream.nodes_f[node]
    most = floats[at.SCORE] + texts.gain * (texts.longest + 1)
    if texts.ranks > 0 and stream.nodes_i[node, at.LETTERS] > 0:
        return float(most)
    return float(most - floats[at.LOOK] + max(0.0, texts.weights[WORD_BONUS]))


@compiled_inline
def highest_with(texts: Texts, stream: Stream, node: int, symbol: int) -> float:
    """Upper bound of the score of a prefix extended by one symbol, -inf if that is impossible."""
    ints, floats = stream.nodes_i[node], stream.nodes_f[node]
    letters, role = int(ints[at.LETTERS]), texts.symbols[symbol, at.ROLE]
    most = floats[at.SCORE] + texts.gain * texts.symbols[symbol, at.COUNT]
    if role == at.SPACE:
        return most - floats[at.LOOK] if letters > 0 else -np.inf
    if role == at.BEGINS and letters > 0:
        return float(most + texts.gain - floats[at.LOOK] + max(0.0, texts.weights[WORD_BONUS]))
    if letters >= MAX_LETTERS:
        return -np.inf
    if texts.has_terms or not texts.has_lm:
        return float(most + max(0.0, texts.weights[WORD_BONUS])) if letters == 0 else float(most)
    base = floats[at.BASE] + (texts.weights[WORD_BONUS] if letters == 0 else 0.0)
    return float(base + _expected_with(texts, int(ints[at.SPELLING]) if letters > 0 else 0, symbol, letters + 1))


@compiled_inline
def highest_closed(texts: Texts, stream: Stream, node: int) -> float:
    """Upper bound of the score of a prefix whose open word ends before a next one, without the score of that one."""
    floats = stream.nodes_f[node]
    return float(floats[at.SCORE] - floats[at.LOOK] + max(0.0, texts.weights[WORD_BONUS]) + 2 * texts.gain)


@compiled_inline
def highest_closed_as(texts: Texts, stream: Stream, node: int, rank: int) -> float:
    """The same for the open word as its homophone of this rank."""
    floats = stream.nodes_f[node]
    if texts.has_terms or (rank == 0 and np.isnan(floats[at.CLOSING])):
        return highest_closed(texts, stream, node)
    closing = floats[at.CLOSING] if rank == 0 else closing_of_others(texts, stream, node)
    return float(floats[at.BASE] + closing + texts.weights[WORD_BONUS])


@compiled
def highest_begun(texts: Texts, symbol: int) -> float:
    """Upper bound of the expected score of a word that begins with a phone."""
    return 0.0 if texts.has_terms else _expected_with(texts, 0, symbol, 1)


@compiled_inline
def _expected_with(texts: Texts, spelling: int, symbol: int, letters: int) -> float:
    """Expected score of an open word of `letters` letters, with the first letter of one more symbol."""
    column = int(texts.columns[texts.symbols[symbol, at.FIRST]])
    return expected_score(texts, spell_on(texts, spelling, column), letters)
