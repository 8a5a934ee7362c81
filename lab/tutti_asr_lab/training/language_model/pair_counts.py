"""Bigram model from published counts of words and word pairs, for sources whose text is not available."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model.errors import LanguageModelError
from model.lm.arpa_rows import ABSENT_LOG10, LN10
from model.lm.trie import END_ID, SPECIAL_WORDS, START_ID, NgramTable
from model.text.files import read_lines
from tutti_asr_lab.training.language_model.mixture import normalized

SUFFIX = ".counts"
# The counts do not include ends of sentences; in written English about one in twenty tokens is one.
_END_SHARE = 0.05
# Count of a word that is not listed, as a multiple of the rarest listed word's.
_UNSEEN = 0.1
# Upper bound of the probability of all pairs after a word; seldom reached, because published lists are truncated.
_MOST_PAIRS = 0.95


def read_counts(path: Path) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Read lines of one or two words and a count. Raises: LanguageModelError with file and line."""
    words: dict[str, int] = {}
    pairs: dict[tuple[str, str], int] = {}
    for number, line in enumerate(read_lines(path, LanguageModelError), 1):
        match line.split():
            case [word, count] if count.isdigit():
                words[word] = int(count)
            case [one, two, count] if count.isdigit():
                pairs[one, two] = int(count)
            case []:
                pass
            case _:
                raise LanguageModelError(f"{path}:{number}: expected one or two words and a count, not {line[:60]!r}")
    return words, pairs


def pair_model(
    words: dict[str, int], pairs: dict[tuple[str, str], int], vocabulary: Sequence[str], order: int = 2
) -> list[NgramTable]:
    """Tables of a model of order 2 (or 1) over a vocabulary, which begins with the special words."""
    index = {word: i for i, word in enumerate(vocabulary)}
    counts = np.array([words.get(word, 0) for word in vocabulary], np.float64)
    counts[counts == 0] = _UNSEEN * min(words.values())
    counts[: len(SPECIAL_WORDS)] = 0.0
    unigram = counts / counts.sum() * (1 - 2 * _END_SHARE)
    unigram[END_ID] = _END_SHARE
    unigram[0] = _END_SHARE  # words outside the vocabulary
    unigram[START_ID] = 1.0
    log_prob = np.log(unigram).astype(np.float32)
    log_prob[START_ID] = ABSENT_LOG10 * LN10
    none = np.zeros(len(vocabulary), np.float32)
    tables = [NgramTable(np.arange(len(vocabulary), dtype=np.int32)[:, None], log_prob, none)]
    if order == 1:
        return tables
    rows = sorted((index[a], index[b], n) for (a, b), n in pairs.items() if a in index and b in index and a in words)
    ids = np.array([row[:2] for row in rows], np.int32).reshape(-1, 2)
    share = np.array([row[2] for row in rows], np.float64) / counts[ids[:, 0]]
    taken = np.bincount(ids[:, 0], share, len(vocabulary))
    share *= np.minimum(1.0, _MOST_PAIRS / np.maximum(taken, 1e-9))[ids[:, 0]]
    tables.append(NgramTable(ids, np.log(share).astype(np.float32), np.zeros(len(ids), np.float32)))
    return normalized(tables)
