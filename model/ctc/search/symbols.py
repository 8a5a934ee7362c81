"""Letters written by the symbols of a vocabulary, in the letters of language model and key terms.

In a vocabulary of characters each symbol writes itself. Symbols of published models are word pieces: their letters are
folded like those of key terms, and a word start is a space before them. One additional symbol, the boundary, is that
space in the tree of prefixes.

Phones write no letters: each is a column of its own in the trie of pronunciations, and there is one boundary for each
homophone rank, which says which word it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.config import BLANK
from model.ctc.search import layout as at
from model.ctc.search.layout import MAX_LETTERS, SPACE_COLUMN
from model.ctc.tokens import WORD_START, Tokens
from model.errors import VocabularyError
from model.lm.spelling import LETTERS
from model.machine.compiled import IntArray
from model.text.letters import folded

MAX_SYMBOLS = 65_535  # a saved state has 16 bits per symbol, including the boundary
_SPECIAL = re.compile(r"<[^<>]+>|\[[A-Z]+\]")
_UNKNOWN_COLUMN = -1


@dataclass(frozen=True, slots=True)
class Symbols:
    """Texts (V,) and numbers of symbols for compiled code, boundaries last.

    table (V + 1, SYMBOL_INTS) int32, for phones (V + ranks, SYMBOL_INTS); columns (N,) int32 of the letters of all
    symbols; `space` is -1 without a space; `ranks`: most homophones of a word, 0 if symbols spell words.
    """

    texts: tuple[str, ...]
    blank: int
    space: int
    table: IntArray
    columns: IntArray
    ranks: int = 0

    @property
    def boundary(self) -> int:
        """The first symbol after those of the model: the space before a piece that begins a word."""
        return len(self.texts)

    @property
    def last(self) -> int:
        """The last symbol, a boundary."""
        return len(self.table) - 1

    @property
    def longest(self) -> int:
        """Most letters of a symbol."""
        return int(self.table[:, at.COUNT].max())

    @property
    def adds_boundaries(self) -> bool:
        """Whether a symbol may also add a boundary to the tree."""
        return self.ranks > 0 or self.has_starts

    @property
    def has_starts(self) -> bool:
        """Whether there are symbols that begin a word and write letters of it."""
        return bool((self.table[:, at.ROLE] == at.BEGINS).any())

    @property
    def spells_key_terms(self) -> bool:
        """Whether there are symbols that write a letter of key terms."""
        return bool(((self.columns > _UNKNOWN_COLUMN) & (self.columns != SPACE_COLUMN)).any())

    @classmethod
    def of_characters(cls, vocabulary: Sequence[str]) -> Symbols:
        """Build symbols that are single characters, the first the blank "". Raises: ValueError."""
        if not 1 <= len(vocabulary) <= MAX_SYMBOLS or vocabulary[BLANK] != "":
            raise ValueError(f'a vocabulary must have the blank "" first and at most {MAX_SYMBOLS} symbols')
        if any(len(symbol) != 1 for symbol in vocabulary[1:]):
            raise ValueError("each symbol of a vocabulary except the blank must be one character")
        written = [(at.NEVER, ())] + [
            (at.SPACE, (SPACE_COLUMN,)) if symbol == " " else (at.WRITES, (LETTERS.find(symbol),))
            for symbol in vocabulary[1:]
        ]
        return cls._built(tuple(vocabulary), BLANK, written)

    @classmethod
    def of_tokens(cls, tokens: Tokens, *, known_letters: bool) -> Symbols:
        """Build the symbols of a published model. `known_letters`: all letters must be in the language model.

        Raises: VocabularyError for symbols that are not letters, such as bytes and ideographs.
        """
        if not 1 <= len(tokens.symbols) <= MAX_SYMBOLS:
            raise VocabularyError(f"the beam search supports at most {MAX_SYMBOLS} symbols, not {len(tokens.symbols)}")
        written = [_written(tokens, number, known_letters=known_letters) for number in range(len(tokens.symbols))]
        texts = (
            "" if role == at.NEVER else text.decode() for (role, _), text in zip(written, tokens.texts, strict=True)
        )
        return cls._built(tuple(texts), tokens.blank, written)

    @classmethod
    def of_phones(cls, phones: Sequence[str], ranks: int) -> Symbols:
        """Build the blank and `phones`; a word has at most `ranks` homophones."""
        written = [(at.NEVER, ())] + [(at.WRITES, (column,)) for column in range(len(phones))]
        found = cls._built(("", *phones), BLANK, written)
        table = np.concatenate([found.table, np.repeat(found.table[-1:], ranks - 1, axis=0)])
        return cls(found.texts, found.blank, found.space, table, found.columns, ranks)

    @classmethod
    def _built(cls, texts: tuple[str, ...], blank: int, written: Sequence[tuple[int, tuple[int, ...]]]) -> Symbols:
        table = np.zeros((len(written) + 1, at.SYMBOL_INTS), np.int32)
        columns: list[int] = []
        for row, (role, letters) in zip(table, (*written, (at.SPACE, (SPACE_COLUMN,))), strict=True):
            row[[at.ROLE, at.FIRST, at.COUNT]] = role, len(columns), len(letters)
            columns += letters
        spaces = np.flatnonzero(table[:-1, at.ROLE] == at.SPACE)
        space = int(spaces[-1]) if len(spaces) else -1
        return cls(texts, blank, space, table, np.array(columns, np.int32))


def _written(tokens: Tokens, number: int, *, known_letters: bool) -> tuple[int, tuple[int, ...]]:
    """Return the role of one symbol and the columns of its letters. Raises: VocabularyError."""
    symbol, text = tokens.symbols[number], tokens.texts[number]
    if number == tokens.blank:
        return at.NEVER, ()
    if not text and tokens.ends[number]:
        return at.SPACE, (SPACE_COLUMN,)
    plain = symbol.removeprefix(WORD_START)
    if text != plain.encode():
        raise VocabularyError(f"symbol {number}, {symbol!r}, writes bytes; the beam search needs letters")
    if _SPECIAL.fullmatch(plain):
        return at.NEVER, ()
    if tokens.ends[number]:
        raise VocabularyError(f"symbol {number}, {symbol!r}, is a whole word; the beam search has no letter for it")
    letters = _columns(plain)
    if not plain or WORD_START in plain or any(letter.isspace() for letter in plain):
        raise VocabularyError(f"symbol {number}, {symbol!r}, cannot be spelled within one word")
    if known_letters and _UNKNOWN_COLUMN in letters:
        raise VocabularyError(f"symbol {number}, {symbol!r}, has letters that the language model cannot spell")
    if len(letters) >= MAX_LETTERS:
        raise VocabularyError(f"symbol {number}, {symbol!r}, has {len(letters)} letters, more than a word may have")
    return (at.BEGINS if tokens.starts[number] else at.WRITES), letters


def _columns(text: str) -> tuple[int, ...]:
    """Return the columns of a piece's letters, folded like key terms; one unknown letter if none is left."""
    return tuple(map(LETTERS.find, folded(text))) or (_UNKNOWN_COLUMN,)
