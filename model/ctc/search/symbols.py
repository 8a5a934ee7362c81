"""What the symbols of a vocabulary write, spelled in the letters of language model and key terms.

A vocabulary of characters spells each symbol as itself. Symbols of published models are pieces of words: their letters
are folded as those of key terms are, a word start is a space before them. One symbol more than the model has, the
boundary, stands for that space in the tree of prefixes.

Phones write no letters: each is a column of its own in the trie of pronunciations, and one boundary more for each word
that may sound alike says which of them it was.
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
from model.lm.characters import LETTERS
from model.machine.compiled import IntArray
from model.text.letters import folded

MAX_SYMBOLS = 65_535  # a saved state has 16 bits for each, the boundary included
_SPECIAL = re.compile(r"<[^<>]+>|\[[A-Z]+\]")
_UNKNOWN_COLUMN = -1


@dataclass(frozen=True, slots=True)
class Symbols:
    """Texts (V,) and numbers for compiled code, those of the boundaries last.

    table (V + 1, SYMBOL_INTS) int32, for phones (V + ranks, SYMBOL_INTS); columns (N,) int32 of all letters, symbol
    after symbol; `space` is -1 without one; `ranks` of words that sound alike, 0 where symbols spell words.
    """

    texts: tuple[str, ...]
    blank: int
    space: int
    table: IntArray
    columns: IntArray
    ranks: int = 0

    @property
    def boundary(self) -> int:
        """The symbol after the model's own: the space in front of a piece that begins a word."""
        return len(self.texts)

    @property
    def last(self) -> int:
        """The last symbol, a boundary."""
        return len(self.table) - 1

    @property
    def longest(self) -> int:
        """Most letters that a symbol writes."""
        return int(self.table[:, at.COUNT].max())

    @property
    def adds_boundaries(self) -> bool:
        """Whether a symbol may add a boundary to the tree besides itself."""
        return self.ranks > 0 or self.has_starts

    @property
    def has_starts(self) -> bool:
        """Whether a symbol begins a word and writes letters of it."""
        return bool((self.table[:, at.ROLE] == at.BEGINS).any())

    @property
    def spells_key_terms(self) -> bool:
        """Whether a symbol writes a letter of key terms."""
        return bool(((self.columns > _UNKNOWN_COLUMN) & (self.columns != SPACE_COLUMN)).any())

    @classmethod
    def of_characters(cls, vocabulary: Sequence[str]) -> Symbols:
        """Symbols that are single characters, the first the blank "". Raises: ValueError."""
        if not 1 <= len(vocabulary) <= MAX_SYMBOLS or vocabulary[BLANK] != "":
            raise ValueError(f"a vocabulary has at most {MAX_SYMBOLS} symbols, and the first is the blank")
        if any(len(symbol) != 1 for symbol in vocabulary[1:]):
            raise ValueError("each symbol but the blank is one character")
        written = [(at.NEVER, ())] + [
            (at.SPACE, (SPACE_COLUMN,)) if symbol == " " else (at.WRITES, (LETTERS.find(symbol),))
            for symbol in vocabulary[1:]
        ]
        return cls._built(tuple(vocabulary), BLANK, written)

    @classmethod
    def of_tokens(cls, tokens: Tokens, *, known_letters: bool) -> Symbols:
        """Symbols of a published model; `known_letters`: all letters must be the language model's.

        Raises: VocabularyError for symbols that are no letters, as bytes and ideographs are.
        """
        if not 1 <= len(tokens.symbols) <= MAX_SYMBOLS:
            raise VocabularyError(f"the beam search takes at most {MAX_SYMBOLS} symbols, not {len(tokens.symbols)}")
        written = [_written(tokens, number, known_letters=known_letters) for number in range(len(tokens.symbols))]
        texts = (
            "" if role == at.NEVER else text.decode() for (role, _), text in zip(written, tokens.texts, strict=True)
        )
        return cls._built(tuple(texts), tokens.blank, written)

    @classmethod
    def of_phones(cls, phones: Sequence[str], ranks: int) -> Symbols:
        """The blank, then `phones`; at most `ranks` words sound alike."""
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
    """The role of one symbol and the columns of its letters. Raises: VocabularyError."""
    symbol, text = tokens.symbols[number], tokens.texts[number]
    if number == tokens.blank:
        return at.NEVER, ()
    if not text and tokens.ends[number]:
        return at.SPACE, (SPACE_COLUMN,)
    plain = symbol.removeprefix(WORD_START)
    if text != plain.encode():
        raise VocabularyError(f"symbol {number}, {symbol!r}, writes bytes, and the beam search needs letters")
    if _SPECIAL.fullmatch(plain):
        return at.NEVER, ()
    if tokens.ends[number]:
        raise VocabularyError(f"symbol {number}, {symbol!r}, is a word of its own: the beam search has no such letters")
    letters = _columns(plain)
    if not plain or WORD_START in plain or any(letter.isspace() for letter in plain):
        raise VocabularyError(f"symbol {number}, {symbol!r}, cannot be spelled within one word")
    if known_letters and _UNKNOWN_COLUMN in letters:
        raise VocabularyError(f"symbol {number}, {symbol!r}, has letters that the language model cannot spell")
    if len(letters) >= MAX_LETTERS:
        raise VocabularyError(f"symbol {number}, {symbol!r}, has {len(letters)} letters, more than a word may have")
    return (at.BEGINS if tokens.starts[number] else at.WRITES), letters


def _columns(text: str) -> tuple[int, ...]:
    """Columns of a piece's letters, folded as key terms are; one unknown letter where none is left."""
    return tuple(map(LETTERS.find, folded(text))) or (_UNKNOWN_COLUMN,)
