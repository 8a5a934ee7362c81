"""Counting of n-grams: from sentences as one array of word ids to sorted tables of distinct n-grams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.lm.trie import END_ID, SPECIAL_WORDS, START_ID, UNKNOWN_ID
from model.machine.compiled import IntArray

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NgramCounts:
    """Distinct n-grams of one order, sorted by words: ids (n, order), count (n,).

    parent (n,) and suffix (n,) are the rows of their first and last order - 1 words in the table of the next lower
    order.
    """

    ids: IntArray
    count: Places
    parent: Places
    suffix: Places


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count the words of sentences, one per line."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    return counts


def number_words(lines: Iterable[str], words: Sequence[str]) -> IntArray:
    """Sentences as one array of word ids, each between `<s>` and `</s>`."""
    index = {word: i for i, word in enumerate(words)}
    numbers: list[int] = []
    for line in lines:
        if tokens := line.split():
            numbers.append(START_ID)
            numbers.extend(index.get(token, UNKNOWN_ID) for token in tokens)
            numbers.append(END_ID)
    return np.array(numbers, np.int32)


def count_ngrams(tokens: IntArray, vocabulary: int, order: int) -> list[NgramCounts]:
    """Count all n-grams of 1 to `order` words within sentences; every word has a row in the first table."""
    every = np.arange(vocabulary, dtype=np.int32)
    none = np.zeros(vocabulary, np.int64)
    tables = [NgramCounts(every[:, None], np.bincount(tokens, minlength=vocabulary), none, none)]
    place = tokens.astype(np.int64)  # row of the n-gram that starts at each token
    inside = np.ones(len(tokens), np.bool_)  # whether this n-gram ends in the same sentence
    for n in range(2, order + 1):
        starts = len(tokens) - n + 1
        if starts < 1:
            break
        inside = inside[:starts] & (tokens[n - 1 :] != START_ID)
        keys = place[:starts][inside] * vocabulary + tokens[n - 1 :][inside]
        distinct, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
        suffix = np.zeros(len(distinct), np.int64)
        suffix[inverse] = place[1 : starts + 1][inside]
        parent = distinct // vocabulary
        ids = np.column_stack([tables[-1].ids[parent], (distinct % vocabulary).astype(np.int32)])
        tables.append(NgramCounts(ids, count, parent, suffix))
        place = np.zeros(starts, np.int64)
        place[inside] = inverse
    return tables


def choose_vocabulary(counts: Counter[str], size: int | None, least: float = 1) -> tuple[str, ...]:
    """Special words, then, sorted, the `size` most frequent words among those that occur at least `least` times."""
    chosen = sorted((word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word))
    plain = [word for word in chosen if word not in SPECIAL_WORDS]
    return (*SPECIAL_WORDS, *sorted(plain[:size]))
