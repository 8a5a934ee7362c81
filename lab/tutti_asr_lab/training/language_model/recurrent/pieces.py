"""Byte pair encoding: word pieces learned from a text by repeatedly merging the most frequent pair of pieces.

Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units" (byte pair encoding).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise

from model.lm.recurrent.pieces import BEGIN_MARK, LETTERS, Pieces

Pair = tuple[str, str]


def learn_pieces(words: Mapping[str, int], size: int) -> Pieces:
    """Learn `size` pieces, or fewer if no pairs are left, from words of `LETTERS` and their counts."""
    symbols = ["", *LETTERS, *(BEGIN_MARK + letter for letter in LETTERS)]
    cut = {word: [BEGIN_MARK + word[0], *word[1:]] for word in words if word and not set(word) - set(LETTERS)}
    counts: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[str]] = defaultdict(set)
    for word, parts in cut.items():
        _count(parts, words[word], word, counts, where)
    while len(symbols) < size and counts:
        pair, _ = max(counts.items(), key=lambda item: (item[1], item[0]))
        for word in list(where[pair]):
            _count(cut[word], -words[word], word, counts, where)
            cut[word] = _joined(cut[word], pair)
            _count(cut[word], words[word], word, counts, where)
        symbols.append("".join(pair))
    return Pieces(symbols)


def _count(parts: list[str], times: int, word: str, counts: Counter[Pair], where: defaultdict[Pair, set[str]]) -> None:
    """Add the pairs of a word `times` times; a negative number removes them."""
    for pair in pairwise(parts):
        counts[pair] += times
        if times > 0:
            where[pair].add(word)
        else:
            where[pair].discard(word)
        if counts[pair] <= 0:
            del counts[pair]


def _joined(parts: list[str], pair: Pair) -> list[str]:
    joined: list[str] = []
    place = 0
    while place < len(parts):
        if tuple(parts[place : place + 2]) == pair:
            joined.append("".join(pair))
            place += 2
        else:
            joined.append(parts[place])
            place += 1
    return joined
