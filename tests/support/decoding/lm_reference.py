"""Slow reference implementation of back-off models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from model.lm.arpa import Ngrams
from model.lm.trie import SPECIAL_WORDS, NgramTable

Model = Mapping[tuple[int, ...], tuple[float, float]]


def backoff_log_prob(model: Model, context: Sequence[int], word: int) -> float:
    """Definition: the longest known n-gram, and the back-off weights of the longer contexts."""
    context = tuple(context)
    penalty = 0.0
    while True:
        if (*context, word) in model:
            return penalty + model[*context, word][0]
        penalty += model.get(context, (0.0, 0.0))[1]
        context = context[1:]


def as_dict(tables: Sequence[NgramTable]) -> dict[tuple[int, ...], tuple[float, float]]:
    return {
        tuple(ids): (log_prob, backoff)
        for table in tables
        for ids, log_prob, backoff in zip(
            table.ids.tolist(), table.log_prob.tolist(), table.backoff.tolist(), strict=True
        )
    }


def as_ngrams(model: Model, order: int) -> Ngrams:
    """Tables of a model given as a dictionary, with words a, b, c …"""
    vocabulary = sum(len(key) == 1 for key in model)
    words = (*SPECIAL_WORDS, *(chr(ord("a") + i) for i in range(vocabulary - len(SPECIAL_WORDS))))
    tables = []
    for n in range(1, order + 1):
        rows = sorted(key for key in model if len(key) == n)
        values = np.array([model[row] for row in rows], np.float32).reshape(-1, 2)
        tables.append(NgramTable(np.array(rows, np.int32).reshape(-1, n), values[:, 0].copy(), values[:, 1].copy()))
    return Ngrams(words, tuple(tables))
