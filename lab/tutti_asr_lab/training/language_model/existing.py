"""Existing n-gram model as a source of a mixture: its words respelled, its n-grams restricted to a vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from model.lm.arpa import Ngrams
from model.lm.arpa_rows import ABSENT_LOG10, LN10
from model.lm.trie import SPECIAL_WORDS, START_ID, UNKNOWN_ID, NgramTable
from model.machine.compiled import IntArray
from tutti_asr_lab.training.language_model.mixture import normalized

SUFFIXES = (".arpa", ".arpa.gz")
_COUNTED = 100_000_000  # size of the imaginary text for word counts: large, so that rare words count at least once
# Probability of a word that the model lacks, as a multiple of its rarest word's.
_UNSEEN = 0.1


def respelled(model: Ngrams, spell: Callable[[str], str]) -> Ngrams:
    """Model with its words respelled; a word becomes "" if its new spelling is empty, several words or ambiguous."""
    special = len(SPECIAL_WORDS)
    spelled = [spell(word) for word in model.words[special:]]
    unchanged = set(spelled) & set(model.words)
    times = Counter(spelled)
    words = [
        new if new and " " not in new and (new == old if new in unchanged else times[new] == 1) else ""
        for old, new in zip(model.words[special:], spelled, strict=True)
    ]
    return Ngrams((*SPECIAL_WORDS, *words), model.tables)


def word_counts(model: Ngrams) -> Counter[str]:
    """Expected count of each word in a large text."""
    special = len(SPECIAL_WORDS)
    counts = np.rint(np.exp(model.tables[0].log_prob[special:].astype(np.float64)) * _COUNTED).astype(np.int64)
    return Counter({word: n for word, n in zip(model.words[special:], counts.tolist(), strict=True) if word})


def over_vocabulary(model: Ngrams, vocabulary: Sequence[str], order: int) -> list[NgramTable]:
    """N-grams of up to `order` words of a vocabulary, which begins with `SPECIAL_WORDS`.

    The probability of other words goes to the unknown word; probabilities after every context sum to 1 again.
    """
    index = {word: i for i, word in enumerate(vocabulary)}
    places = np.array([index.get(word, -1) for word in model.words], np.int32)
    tables = [_unigrams(model.tables[0], places, len(vocabulary))]
    for table in model.tables[1:order]:
        ids = places[table.ids]
        kept = ((ids >= 0) & (ids != UNKNOWN_ID)).all(axis=1)
        tables.append(NgramTable(ids[kept], table.log_prob[kept], table.backoff[kept]))
    return normalized(tables)


def _unigrams(table: NgramTable, places: IntArray, vocabulary: int) -> NgramTable:
    probability = np.exp(table.log_prob.astype(np.float64))
    probability[START_ID] = 0.0
    known, special = places >= 0, len(SPECIAL_WORDS)
    shares = np.full(vocabulary, _UNSEEN * probability[special:].min(initial=1.0))
    shares[:special] = 0.0
    shares[places[known]] = probability[known]
    shares[UNKNOWN_ID] += probability[~known].sum()
    with np.errstate(divide="ignore"):  # probabilities of 0
        log_prob = np.maximum(np.log(shares / shares.sum()), ABSENT_LOG10 * LN10).astype(np.float32)
    return NgramTable(np.arange(vocabulary, dtype=np.int32)[:, None], log_prob, np.zeros(vocabulary, np.float32))
