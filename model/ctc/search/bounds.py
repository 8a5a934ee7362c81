"""Upper bounds of the scores of longer prefixes, with which the search skips most of them without scoring them.

Expected scores never rise with more letters. Without key terms the expected score with the next letter is cheap and a
tight bound; key terms may add to a score, or refund a deduction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.layout import MAX_LETTERS, Stream
from model.ctc.search.prefix_score import WORD_BONUS, Texts, closing_of_others, expected_score, spell_on
from model.machine.compiled import ZERO, compiled, compiled_inline


class Prefix(NamedTuple):
    """What bounds need of a prefix, read once for all symbols that may extend it."""

    score: float
    base: float  # with the bonus of a word that the next letter begins
    look: float
    letters: int
    spelling: int


@compiled_inline
def prefix_at(texts: Texts, stream: Stream, node: int) -> Prefix:
    """Return the prefix of a node."""
    ints, floats = stream.nodes_i[node], stream.nodes_f[node]
    letters = int(ints[at.LETTERS])
    base = floats[at.BASE] + (texts.weights[WORD_BONUS] if letters == 0 else 0.0)
    spelling = ZERO
    if letters > 0:
        spelling += ints[at.SPELLING]
    return Prefix(floats[at.SCORE], base, floats[at.LOOK], letters, spelling)


@compiled_inline
def highest_score(texts: Texts, prefix: Prefix) -> float:
    """Upper bound of the score of a prefix extended by any symbol (of phones: one that does not begin a word)."""
    most = prefix.score + texts.gain * (texts.longest + 1)
    if texts.ranks > 0 and prefix.letters > 0:
        return float(most)
    return float(most - prefix.look + max(0.0, texts.weights[WORD_BONUS]))


@compiled_inline
def highest_with(texts: Texts, prefix: Prefix, symbol: int) -> float:
    """Upper bound of the score of a prefix extended by one symbol, -inf if that is impossible.

    It is the score itself if `bounds_are_scores` and the symbol writes one letter of the open word.
    """
    letters, role = prefix.letters, texts.symbols[symbol, at.ROLE]
    most = prefix.score + texts.gain * texts.symbols[symbol, at.COUNT]
    if role == at.SPACE:
        return most - prefix.look if letters > 0 else -np.inf
    if role == at.BEGINS and letters > 0:
        return float(most + texts.gain - prefix.look + max(0.0, texts.weights[WORD_BONUS]))
    if letters >= MAX_LETTERS:
        return -np.inf
    if not bounds_are_scores(texts):
        return float(most + max(0.0, texts.weights[WORD_BONUS])) if letters == 0 else float(most)
    return float(prefix.base + _expected_with(texts, prefix.spelling, symbol, letters + 1))


@compiled_inline
def bounds_are_scores(texts: Texts) -> bool:
    """Whether `highest_with` is the score where a symbol writes one letter of the open word."""
    return texts.has_lm and not texts.has_terms


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
