"""Scores of a prefix other than the acoustic one: language model, unknown words, word bonus, key terms.

An open word gets the score of the likeliest word that begins with its letters, so that it can be compared with closed
words; when it closes, the language model's score replaces it. Expected scores never rise with more letters, so the
search can skip an extension without computing its score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model.ctc.search import layout as at
from model.ctc.search.layout import SPACE_COLUMN, Stream
from model.lm.score import lm_score
from model.lm.spelling import Sets, next_spelling
from model.machine.compiled import DoubleArray, FloatArray, IntArray, LongArray, compiled, compiled_inline
from model.machine.pointers import FLOAT32, FLOAT64, INT32, UINT64, address_of, pointer_at

# weights, float64
LM_WEIGHT, WORD_BONUS, UNKNOWN_COST, UNKNOWN_LETTER_COST, KEYTERM_BOOST, BLANK_PENALTY = range(6)

# limits, float64
KEPT_SHARE, KEPT_SYMBOLS = 0, 1  # probability and number of the symbols kept for a frame
REACH = 2  # hypotheses this far below the best score are dropped
MERGES = 3  # 1: hypotheses with the same future are merged; those of letters only if there is no room for all
KEEPS_BLANK = 4  # 1: each frame also keeps the blank, so that with a small vocabulary some hypothesis can continue

# model, int64: sizes and addresses
HAS_LM, NODES, SPELLINGS, SETS, SOUNDING = range(5)
FIRST, WORD, LOG_PROB, BACKOFF, SUFFIX, AFTER = range(5, 11)
FOLLOWS, BELOW, SPELLED, BEST, HOMOPHONES, SOUNDS_LIKE, LIKELIEST = range(11, 18)

NO_TERMS = at.TERM_ELSEWHERE + 1  # states of an automaton without a phrase
UNKNOWN_ID = 0
END_ID = 2  # "</s>"
UNFINISHED = -1  # homophone of an unfinished word: the likeliest that begins with these phones
UNPRONOUNCED = -1_000.0  # score of phones that form no word: far below any reach


class Setup(NamedTuple):
    """Arguments of a decoder for compiled code."""

    beams: int
    limits: DoubleArray  # (5,)
    blank: int
    space: int  # symbol of the space, -1 if there is none
    growth: int  # most nodes added by a symbol: two with a boundary
    longest: int  # most letters written by a symbol
    boundary: int  # V, the first of the symbols that close a word without taking a frame
    ranks: int  # most homophones of a word; 0: symbols are letters
    symbols: IntArray  # (V + 1 or V + ranks, SYMBOL_INTS) `Symbols.table`, boundaries last
    columns: IntArray  # (N,) of their letters: a to z, apostrophe, space; -1 for others
    weights: DoubleArray  # (6,)
    model: LongArray  # (18,)


class Texts(NamedTuple):
    """Pointers for scoring the texts of one stream: language model, its `Bias`, the weights."""

    blank: int
    space: int
    growth: int
    longest: int
    boundary: int
    ranks: int
    symbols: IntArray
    columns: IntArray
    weights: DoubleArray
    has_lm: bool
    first: IntArray
    word: IntArray
    log_prob: FloatArray
    backoff: FloatArray
    suffix: IntArray
    after: IntArray
    sets: int  # W
    follows: Sets  # (spellings * W,), as the next `SpellingTrie`
    below: IntArray
    spelled: IntArray
    best: FloatArray
    homophones: IntArray  # (spellings + 1,) first word of each node in `sounds_like`; both only with `ranks`
    sounds_like: IntArray
    likeliest: IntArray  # (spellings,)
    terms: IntArray
    values: DoubleArray
    has_terms: bool
    gain: float  # most that key terms add for a letter or a space


_symbol_rows, _floats, _sets = pointer_at(INT32, at.SYMBOL_INTS), pointer_at(FLOAT32), pointer_at(UINT64)
_term_ints, _term_floats = pointer_at(INT32, at.TERM_INTS), pointer_at(FLOAT64, at.TERM_FLOATS)


@compiled
def texts_of(setup: Setup, header: LongArray) -> Texts:
    """Return the pointers to a decoder's and a stream's tables."""
    model = setup.model
    values = _term_floats(header[at.BIAS_FLOATS])
    return Texts(
        setup.blank,
        setup.space,
        setup.growth,
        setup.longest,
        setup.boundary,
        setup.ranks,
        _symbol_rows(address_of(setup.symbols)),
        at.ints(address_of(setup.columns)),
        at.doubles(address_of(setup.weights)),
        model[HAS_LM] != 0,
        at.ints(model[FIRST]),
        at.ints(model[WORD]),
        _floats(model[LOG_PROB]),
        _floats(model[BACKOFF]),
        at.ints(model[SUFFIX]),
        at.ints(model[AFTER]),
        model[SETS],
        _sets(model[FOLLOWS]),
        at.ints(model[BELOW]),
        at.ints(model[SPELLED]),
        _floats(model[BEST]),
        at.ints(model[HOMOPHONES]),
        at.ints(model[SOUNDS_LIKE]),
        at.ints(model[LIKELIEST]),
        _term_ints(header[at.BIAS_INTS]),
        values,
        header[at.BIAS_STATES] > NO_TERMS,
        setup.weights[KEYTERM_BOOST] * values[0, at.TERM_GAIN],
    )


@compiled
def follow_terms(ints: IntArray, floats: DoubleArray, state: int, column: int) -> tuple[int, float, bool]:
    """Follow the automaton of key terms; return the next state, the score, and whether a phrase broke off."""
    earned, broke = 0.0, False
    while True:
        for child in range(ints[state, at.TERM_FIRST], ints[state + 1, at.TERM_FIRST]):
            if ints[child, at.TERM_COLUMN] == column:
                return child, earned, broke
        if state <= at.TERM_ELSEWHERE:
            return (at.TERM_START if column == at.SPACE_COLUMN else at.TERM_ELSEWHERE), earned, broke
        earned += floats[state, at.TERM_BANK]
        state = ints[state, at.TERM_FAIL]
        broke = True


@compiled
def unknown_score(texts: Texts, letters: int) -> float:
    """Score of a word outside the vocabulary."""
    if texts.ranks > 0:
        return UNPRONOUNCED
    return -float(texts.weights[UNKNOWN_COST] + texts.weights[UNKNOWN_LETTER_COST] * letters)


@compiled_inline
def word_of(texts: Texts, spelling: int, rank: int) -> int:
    """Return the word at a node of the vocabulary's trie, the homophone of this rank; -1 if there is none."""
    if spelling < 0:
        return -1
    if texts.ranks == 0:
        return int(texts.spelled[spelling])
    if rank == UNFINISHED:
        return int(texts.likeliest[spelling])
    place = int(texts.homophones[spelling]) + rank
    return int(texts.sounds_like[place]) if place < texts.homophones[spelling + 1] else -1


@compiled_inline
def spell_on(texts: Texts, spelling: int, column: int) -> int:
    """Return the vocabulary's node one letter or phone further, -1 if no word has this spelling."""
    return (
        next_spelling(texts.follows, texts.sets, texts.below, spelling, column) if spelling >= 0 and column >= 0 else -1
    )


@compiled_inline
def expected_score(texts: Texts, spelling: int, letters: int) -> float:
    """Score of the likeliest word that begins with these `letters` letters; spelling -1: there is none."""
    unknown = unknown_score(texts, letters)
    return max(texts.weights[LM_WEIGHT] * texts.best[spelling], unknown) if spelling >= 0 else unknown


@compiled_inline
def ways_to_close(texts: Texts, stream: Stream, node: int) -> int:
    """Number of words that the open phones of a prefix may be: homophones, or one word from key terms alone."""
    spelling = int(stream.nodes_i[node, at.SPELLING])
    if stream.nodes_i[node, at.LETTERS] == 0:
        return 0
    if spelling < 0:
        return 1
    return min(texts.ranks, int(texts.homophones[spelling + 1] - texts.homophones[spelling]))


Extended = tuple[float, float, float, float, int, int, int]
"""SCORE, BASE, LOOK, WAIVED, SPELLING, BIAS_STATE and LETTERS of a longer prefix."""


@compiled_inline
def add_letters(texts: Texts, stream: Stream, node: int, symbol: int) -> Extended:
    """Extend a prefix by a symbol's letters. A symbol that begins a word closes the open one first."""
    ints, floats = stream.nodes_i, stream.nodes_f
    if ints[node, at.LETTERS] > 0 and texts.symbols[symbol, at.ROLE] == at.BEGINS:
        _, base, waived, _, state = close_word(texts, stream, node, 0)
        return write_letters(texts, symbol, base, waived, state, 0, 0, 0.0)
    return write_letters(
        texts,
        symbol,
        floats[node, at.BASE],
        floats[node, at.WAIVED],
        int(ints[node, at.BIAS_STATE]),
        int(ints[node, at.LETTERS]),
        int(ints[node, at.SPELLING]),
        float(floats[node, at.LOOK]),
    )


@compiled_inline
def write_letters(  # noqa: PLR0917 - compiled code has no keywords
    texts: Texts, symbol: int, base: float, waived: float, state: int, letters: int, spelling: int, look: float
) -> Extended:
    """Append a symbol's letters to a prefix with these scores and states."""
    boost = texts.weights[KEYTERM_BOOST]
    first = int(texts.symbols[symbol, at.FIRST])
    for place in range(first, first + texts.symbols[symbol, at.COUNT]):
        column = int(texts.columns[place])
        state, earned, broke = follow_terms(texts.terms, texts.values, state, column)
        base += boost * earned
        if broke:
            base, waived = base - waived, 0.0
        letters += 1
        if letters == 1:
            base += texts.weights[WORD_BONUS]
            spelling = 0
        if texts.has_lm:
            spelling = spell_on(texts, spelling, column)
            if spelling >= 0 or not texts.terms[state, at.TERM_COVERS]:
                look = expected_score(texts, spelling, letters)  # for an unknown word of a key term
    return base + look + boost * texts.values[state, at.TERM_VALUE], base, look, waived, spelling, state, letters


@compiled
def close_word(texts: Texts, stream: Stream, node: int, rank: int) -> tuple[float, float, float, int, int]:
    """Extend a prefix by the space that closes its word; return SCORE, BASE, WAIVED, LM_STATE and BIAS_STATE.

    The word is the homophone of this rank.
    """
    ints, floats = stream.nodes_i, stream.nodes_f
    state, earned, broke = follow_terms(texts.terms, texts.values, ints[node, at.BIAS_STATE], SPACE_COLUMN)
    boost = texts.weights[KEYTERM_BOOST]
    base, waived = floats[node, at.BASE] + boost * earned, floats[node, at.WAIVED]
    if broke:
        base, waived = base - waived, 0.0
    after = ints[node, at.LM_STATE]
    if texts.has_lm:
        word = word_of(texts, int(ints[node, at.SPELLING]), rank)
        known = word >= 0
        if rank != 0:
            price, after = _close_by_lm(texts, stream, node, word)
        else:
            if np.isnan(floats[node, at.CLOSING]):
                floats[node, at.CLOSING], ints[node, at.NEXT_STATE] = _close_by_lm(texts, stream, node, word)
            price, after = floats[node, at.CLOSING], ints[node, at.NEXT_STATE]
        if rank == UNFINISHED:
            price -= texts.weights[UNKNOWN_COST]
        if not known and texts.terms[state, at.TERM_COVERS]:
            waived += floats[node, at.LOOK] - price
            price = floats[node, at.LOOK]
        base += price
    if texts.terms[state, at.TERM_COMPLETE]:
        waived = 0.0
    return base + boost * texts.values[state, at.TERM_VALUE], base, waived, after, state


@compiled
def _close_by_lm(texts: Texts, stream: Stream, node: int, word: int) -> tuple[float, np.int32]:
    """Language model score of the open word, -1 if it is unknown, and the state after it."""
    log_p, after = lm_score(
        texts.first,
        texts.word,
        texts.log_prob,
        texts.backoff,
        texts.suffix,
        texts.after,
        stream.nodes_i[node, at.LM_STATE],
        word if word >= 0 else UNKNOWN_ID,
    )
    letters = int(stream.nodes_i[node, at.LETTERS])
    return texts.weights[LM_WEIGHT] * log_p if word >= 0 else unknown_score(texts, letters), after


@compiled_inline
def closing_of_others(texts: Texts, stream: Stream, node: int) -> float:
    """Largest language model score of the open word's homophones except the first, if it ended here."""
    floats, kept = stream.nodes_f[node], stream.nodes_i[node, at.LETTERS] > 1
    if kept and not np.isnan(floats[at.OTHERS]):
        return float(floats[at.OTHERS])
    most = -np.inf
    for rank in range(1, ways_to_close(texts, stream, node)):
        word = word_of(texts, int(stream.nodes_i[node, at.SPELLING]), rank)
        most = max(most, _close_by_lm(texts, stream, node, word)[0])
    if kept:
        floats[at.OTHERS] = most
    return most


@compiled
def best_rank(texts: Texts, stream: Stream, node: int, ended: bool) -> int:
    """Rank of the best homophone of the open word, for the text so far or a text that ends here."""
    best, most = 0, -np.inf
    if texts.ranks == 0:
        return best
    ways = ways_to_close(texts, stream, node)
    if ways == 0:
        return UNFINISHED
    for rank in range(ways):
        _, base, _, lm_state, _ = close_word(texts, stream, node, rank)
        score = base + (_end_score(texts, lm_state) if ended else 0.0)
        if score > most:
            best, most = rank, score
    return best


@compiled
def _end_score(texts: Texts, lm_state: int) -> float:
    """Score of the end of the sentence: "four" alone is a likely sentence, "for" is not."""
    if not texts.has_lm:
        return 0.0
    log_p, _ = lm_score(
        texts.first, texts.word, texts.log_prob, texts.backoff, texts.suffix, texts.after, lm_state, END_ID
    )
    return float(texts.weights[LM_WEIGHT] * log_p)


@compiled
def ended_score(texts: Texts, stream: Stream, node: int) -> float:
    """Score of a prefix if the text ends here: the open word is closed, the score of an unfinished key term removed."""
    if stream.nodes_i[node, at.LETTERS] == 0:
        base, waived, lm_state, state = (
            stream.nodes_f[node, at.BASE],
            stream.nodes_f[node, at.WAIVED],
            stream.nodes_i[node, at.LM_STATE],
            stream.nodes_i[node, at.BIAS_STATE],
        )
    else:
        _, base, waived, lm_state, state = close_word(texts, stream, node, best_rank(texts, stream, node, True))
    score = base - waived + texts.weights[KEYTERM_BOOST] * texts.values[state, at.TERM_BANK]
    return float(score + _end_score(texts, lm_state))
