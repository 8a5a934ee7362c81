"""The vocabulary as a trie over letters, for the beam search: words that begin with a prefix, and the best one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.compiled import FloatArray, IntArray

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
_COLUMN = {letter: column for column, letter in enumerate(LETTERS)}
NO_CHILD = NO_WORD = -1


@dataclass(frozen=True, slots=True)
class CharacterTrie:
    """Node 0 is the empty prefix.

    child (nodes, 27) int32, column a..z then apostrophe, -1 for none; word (nodes,) int32, the word that ends here or
    -1; best (nodes,) float32, the largest unigram natural log-probability of the words at and below the node.
    """

    child: IntArray
    word: IntArray
    best: FloatArray


def build_characters(words: Sequence[str], unigrams: FloatArray) -> CharacterTrie:
    """Build the trie of the words that can be spelled with `LETTERS`, capitals folded; the likelier spelling wins."""
    spelled = {}
    for word_id in np.argsort(unigrams, kind="stable").tolist():  # ascending: a likelier one overwrites
        text = words[word_id].lower()
        if text and all(letter in _COLUMN for letter in text):
            spelled[text] = word_id
    none = array("i", [NO_CHILD] * len(LETTERS))
    child, ends, best = array("i", none), [NO_WORD], [-np.inf]
    for text, word_id in sorted(spelled.items()):
        node, score = 0, float(unigrams[word_id])
        best[0] = max(best[0], score)
        for letter in text:
            place = node * len(LETTERS) + _COLUMN[letter]
            if child[place] == NO_CHILD:
                child[place] = len(ends)
                child.extend(none)
                ends.append(NO_WORD)
                best.append(-np.inf)
            node = child[place]
            best[node] = max(best[node], score)
        ends[node] = word_id
    table = np.array(child, np.int32).reshape(-1, len(LETTERS))
    return CharacterTrie(table, np.array(ends, np.int32), np.array(best, np.float32))
