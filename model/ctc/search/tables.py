"""Weights and language model as arrays for the compiled code of the beam search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.ctc.weights import DecodingWeights
from model.lm.language_model import LanguageModel
from model.lm.pronounced import PhoneTrie
from model.lm.spelling import SpellingTrie
from model.machine.compiled import DoubleArray, LongArray

_NO_WORDS = SpellingTrie(np.zeros((1, 1), np.uint64), np.zeros(1, np.int32), np.zeros(1, np.float32))


def weight_row(weights: DecodingWeights) -> DoubleArray:
    """Return the weights in the order of the compiled code."""
    return np.array(
        [
            weights.lm_weight,
            weights.word_bonus,
            weights.unknown_cost,
            weights.unknown_letter_cost,
            weights.keyterm_boost,
            weights.blank_penalty,
        ],
        np.float64,
    )


def model_table(lm: LanguageModel | None, phones: PhoneTrie | None = None) -> tuple[LongArray, list[NDArray[Any]]]:
    """Return sizes and addresses of a language model's arrays, and the arrays, which must outlive the addresses.

    Its words are spelled in letters, or in phones with `phones`.
    """
    if lm is None:
        trie = [np.zeros(2, dtype) for dtype in (np.int32, np.int32, np.float32, np.float32, np.int32, np.int32)]
        letters, spelled = _NO_WORDS, np.full(1, -1, np.int32)
    else:
        trie = list(lm.trie.arrays)
        letters, spelled = lm.characters.spelling, lm.characters.word
    if phones is None:
        spelling, sounding = letters, [np.zeros(1, np.int32)] * 3
    else:
        spelling, sounding = phones.spelling, [phones.first, phones.words, phones.likeliest]
        spelled = np.zeros(1, np.int32)
    arrays = [
        np.ascontiguousarray(array)
        for array in (*trie, spelling.follows, spelling.below, spelled, spelling.best, *sounding)
    ]
    sizes = [lm is not None, len(arrays[1]), *spelling.follows.shape, len(sounding[1])]
    return np.array([*sizes, *(array.ctypes.data for array in arrays)], np.int64), arrays
