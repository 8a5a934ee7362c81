"""Weights and language model as arrays of numbers, which the beam search passes to compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.compiled import DoubleArray, LongArray
from model.ctc.weights import DecodingWeights
from model.lm.characters import LETTERS
from model.lm.language_model import LanguageModel
from model.lm.pronounced import PhoneTrie


def weight_row(weights: DecodingWeights) -> DoubleArray:
    """Return the weights in the order that compiled code reads them."""
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

    Its words are spelled in letters, or with `phones` by their sounds.
    """
    if lm is None:
        trie = [np.zeros(2, dtype) for dtype in (np.int32, np.int32, np.float32, np.float32, np.int32, np.int32)]
        spelling = [np.full((1, len(LETTERS)), -1, np.int32), np.full(1, -1, np.int32), np.zeros(1, np.float32)]
    else:
        trie = list(lm.trie.arrays)
        spelling = [lm.characters.child, lm.characters.word, lm.characters.best]
    if phones is None:
        sounding = [np.zeros(1, np.int32)] * 3
    else:
        spelling = [phones.child, np.zeros(1, np.int32), phones.best]
        sounding = [phones.first, phones.words, phones.likeliest]
    arrays = [np.ascontiguousarray(array) for array in (*trie, *spelling, *sounding)]
    sizes = [lm is not None, len(arrays[1]), len(spelling[2]), spelling[0].shape[1], len(sounding[1])]
    return np.array([*sizes, *(array.ctypes.data for array in arrays)], np.int64), arrays
