"""Alignment of the letters of words with their phones, by expectation maximization over a lexicon.

A letter is aligned with zero, one or two phones, in order, with a probability that depends only on the letter. Source:
the one-to-many case of Jiampojamarn, Kondrak and Sherif 2007 (many-to-many alignments).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

Phones = tuple[str, ...]
Alignment = tuple[Phones, ...]
"""Phones of each letter of a word."""
Probabilities = Mapping[tuple[str, Phones], float]
"""Probability of phones given a letter."""

MOST = 2  # phones per letter: x in "box", u in "use"
WORDS = 10_000  # enough to estimate the probabilities
ROUNDS = 6
_SEEN_NOWHERE = 1e-9  # probability of a pair that did not occur in the estimation


def align(words: Mapping[str, Phones]) -> dict[str, Alignment]:
    """Likeliest alignment of each word; words with more than two phones per letter are left out."""
    fitting = {word: phones for word, phones in words.items() if len(phones) <= MOST * len(word)}
    table = _estimate(fitting)
    return {word: _best(word, phones, table) for word, phones in fitting.items()}


def _estimate(words: Mapping[str, Phones]) -> Probabilities:
    """Probabilities by expectation maximization on evenly spaced words."""
    some = list(islice(words.items(), 0, None, -(-len(words) // WORDS) or 1))
    table: Probabilities = {}
    for _ in range(ROUNDS):
        counts: defaultdict[tuple[str, Phones], float] = defaultdict(float)
        for word, phones in some:
            _count(word, phones, table, counts)
        totals: defaultdict[str, float] = defaultdict(float)
        for (letter, _), count in counts.items():
            totals[letter] += count
        table = {key: count / totals[key[0]] for key, count in counts.items()}
    return table


def _edges(word: str, phones: Phones) -> Iterable[tuple[int, int, int, tuple[str, Phones]]]:
    """Letter i with each possible span of phones j to k that lets the rest be aligned, in ascending order."""
    letters, count = len(word), len(phones)
    for i, letter in enumerate(word):
        least = max(0, count - MOST * (letters - i - 1))
        for j in range(max(0, count - MOST * (letters - i)), min(count, MOST * i) + 1):
            for k in range(max(j, least), min(j + MOST, count) + 1):
                yield i, j, k, (letter, phones[j:k])


def _count(word: str, phones: Phones, table: Probabilities, counts: defaultdict[tuple[str, Phones], float]) -> None:
    """Add the expected count of each pair in a word, by the forward-backward algorithm over the edges."""
    width = len(phones) + 1
    edges = [
        (i * width + j, (i + 1) * width + k, key, table.get(key, 0.0) if table else 1.0)  # uniform in the first round
        for i, j, k, key in _edges(word, phones)
    ]
    forward, backward = [0.0] * (width * (len(word) + 1)), [0.0] * (width * (len(word) + 1))
    forward[0] = backward[-1] = 1.0
    for start, end, _, probability in edges:
        forward[end] += forward[start] * probability
    for start, end, _, probability in reversed(edges):
        backward[start] += backward[end] * probability
    if forward[-1] > 0.0:
        for start, end, key, probability in edges:
            counts[key] += forward[start] * probability * backward[end] / forward[-1]


def _best(word: str, phones: Phones, table: Probabilities) -> Alignment:
    """Likeliest alignment; of equally likely ones, the first."""
    best: list[dict[int, tuple[float, int]]] = [
        {0: (1.0, 0)},
        *({} for _ in word),
    ]  # by letter and phone: probability, previous phone
    for i, j, k, key in _edges(word, phones):
        if j in best[i]:
            value = best[i][j][0] * table.get(key, _SEEN_NOWHERE)
            if k not in best[i + 1] or value > best[i + 1][k][0]:
                best[i + 1][k] = value, j
    found: list[Phones] = []
    end = len(phones)
    for i in range(len(word), 0, -1):
        start = best[i][end][1]
        found.append(phones[start:end])
        end = start
    return tuple(reversed(found))
