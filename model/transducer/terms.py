"""Key terms of one stream in the pieces of a model: the bonus of each symbol, and what follows it.

The automaton is that of CTC search with pieces for letters; each piece of a phrase earns the phrase's weight times
`PIECE_BOOST`, given back where the text leaves the phrase.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import Bias, Letters, PhraseLetters, TermAutomaton, term_automaton
from model.ctc.search import layout as at
from model.ctc.search.layout import SPACE_COLUMN
from model.transducer.spelling import Speller

Floats = NDArray[np.float32]

PIECE_BOOST = 1.5  # as sherpa-onnx's default for hotwords
FIRST_COLUMN = SPACE_COLUMN + 1  # of symbol 0 in the automaton
OTHER = -2  # a column that no phrase has
ROW_BYTES = 1 << 20  # of the bonus of symbols that is kept for one set of key terms


class TermState(NamedTuple):
    """Place of a text in the key terms: state of the automaton, and whether a word is open."""

    state: int = at.TERM_START
    open: bool = False


class PieceTerms:
    """One set of key terms in the pieces of a model; shared by all streams that have it."""

    def __init__(self, automaton: TermAutomaton, speller: Speller) -> None:
        tokens = speller.tokens
        self.automaton, self._tokens = automaton, tokens
        self._children: list[dict[int, int]] = [{} for _ in automaton.floats]
        first = automaton.ints[:, at.TERM_FIRST].tolist()
        columns = automaton.ints[:, at.TERM_COLUMN].tolist()
        for state, children in enumerate(self._children):
            children |= {columns[child]: child for child in range(first[state], first[state + 1])}
        self._fail: list[int] = automaton.ints[:, at.TERM_FAIL].tolist()
        self._value: list[float] = automaton.floats[:, at.TERM_VALUE].tolist()
        self._bank: list[float] = automaton.floats[:, at.TERM_BANK].tolist()
        self._starts = np.array(tokens.starts)
        self._writes = speller.writes
        silent = ~np.array(self._writes)
        self._spaces = silent & np.array(tokens.ends) & self._starts
        self._nothing = silent & ~self._spaces
        rows = max(4, ROW_BYTES // (4 * len(tokens.symbols)))
        self.bonus = lru_cache(maxsize=rows)(self._bonus)

    @property
    def unspeakable(self) -> tuple[str, ...]:
        """Phrases that no symbols of the model express."""
        return self.automaton.unspeakable

    @property
    def states(self) -> int:
        """Number of states of the automaton."""
        return len(self._value)

    def follow(self, position: TermState, symbol: int) -> tuple[TermState, float]:
        """Return the position after a symbol, and its bonus."""
        tokens, state, bonus, is_open = self._tokens, position.state, 0.0, position.open
        if tokens.starts[symbol] and is_open:
            (state, bonus), is_open = self._step(state, SPACE_COLUMN), False
        if self._writes[symbol]:
            state, more = self._step(state, FIRST_COLUMN + symbol)
            bonus, is_open = bonus + more, True
        if tokens.ends[symbol] and is_open:
            state, more = self._step(state, SPACE_COLUMN)
            bonus, is_open = bonus + more, False
        return TermState(state, is_open), PIECE_BOOST * bonus

    def ending(self, position: TermState) -> float:
        """Return by how much the bonus changes if the text ends here: an unfinished phrase is given back."""
        state, closing = self._step(position.state, SPACE_COLUMN) if position.open else (position.state, 0.0)
        return PIECE_BOOST * (closing + self._bank[state] - self._ahead(state))

    def _bonus(self, position: TermState) -> Floats:
        """Return the bonus of each symbol (V,) at a position, the blank's is 0; do not change it."""
        boundary, closing = self._step(position.state, SPACE_COLUMN) if position.open else (position.state, 0.0)
        inside, outside = self._step(position.state, OTHER)[1], closing + self._step(boundary, OTHER)[1]
        row = np.where(self._starts, PIECE_BOOST * outside, PIECE_BOOST * inside).astype(np.float32)
        row[self._spaces], row[self._nothing] = PIECE_BOOST * closing, 0
        for symbol in {*self._expected(position.state), *self._expected(boundary)}:
            row[symbol] = self.follow(position, symbol)[1]
        return row

    def _expected(self, state: int) -> Iterator[int]:
        """Yield the symbols that continue a phrase at a state, or at one that it falls back to."""
        while True:
            yield from (column - FIRST_COLUMN for column in self._children[state] if column >= FIRST_COLUMN)
            if state <= at.TERM_ELSEWHERE:
                return
            state = self._fail[state]

    def _step(self, state: int, column: int) -> tuple[int, float]:
        """Return the state after a column, and by how much the score changes.

        What a phrase of negative weight costs counts at its last piece, before other words compete with it.
        """
        before, earned = self._ahead(state), 0.0
        while (child := self._children[state].get(column, -1)) < 0:
            if state <= at.TERM_ELSEWHERE:
                child = at.TERM_START if column == SPACE_COLUMN else at.TERM_ELSEWHERE
                break
            earned += self._bank[state]
            state = self._fail[state]
        return child, earned + self._ahead(child) - before

    def _ahead(self, state: int) -> float:
        """Return the value of a state; of one that completes a phrase of negative weight, that after the phrase."""
        complete = self._children[state].get(SPACE_COLUMN)
        value = self._value[state]
        return value if complete is None else min(value, self._value[complete])


def piece_terms(bias: Bias, speller: Speller) -> PieceTerms:
    """Build the automaton of some key terms."""
    spelled: dict[PhraseLetters, float] = {}
    words: dict[Letters, str] = {}
    unspeakable: list[str] = []
    for phrase, weight in bias.phrases:
        spelled_words = [(word, speller.spellings(word)) for word in phrase.split()]
        if not all(any(variants) for _, variants in spelled_words):
            unspeakable.append(phrase)
            continue
        for way in range(len(spelled_words[0][1])):
            columns = []
            for word, variants in spelled_words:
                pieces = variants[way] or next(filter(None, variants))
                columns.append(tuple(FIRST_COLUMN + piece for piece in pieces))
                words[columns[-1]] = word
            spelled.setdefault(tuple(columns), weight)
    return PieceTerms(term_automaton(words, spelled, unspeakable), speller)
