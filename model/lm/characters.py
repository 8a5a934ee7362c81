"""Vocabulary as a trie over letters, for the beam search: words that begin with a prefix, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.lm.spelling import SpellingTrie, build_spelling
from model.machine.compiled import FloatArray, IntArray

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
_COLUMN = {letter: column for column, letter in enumerate(LETTERS)}
NO_WORD = -1


@dataclass(frozen=True, slots=True)
class CharacterTrie:
    """Trie over a to z, then the apostrophe; `word` (nodes,) int32 is the word that ends at a node, or -1."""

    spelling: SpellingTrie
    word: IntArray


def build_characters(words: Sequence[str], unigrams: FloatArray) -> CharacterTrie:
    """Build the trie of the words spelled with `LETTERS`; words that differ in case count as one, the likelier."""
    spelled = {}
    for word_id in np.argsort(unigrams, kind="stable").tolist():  # ascending: a likelier word overwrites
        text = words[word_id].lower()
        if text and all(letter in _COLUMN for letter in text):
            spelled[text] = word_id
    ids = np.array(list(spelled.values()), np.int32)
    columns = [[_COLUMN[letter] for letter in text] for text in spelled]
    spelling, at, _ = build_spelling(columns, ids, unigrams, len(LETTERS))
    ends = np.full(len(spelling.best), NO_WORD, np.int32)
    ends[at] = ids
    return CharacterTrie(spelling, ends)
