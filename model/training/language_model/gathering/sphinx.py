"""CMU Sphinx's n-gram models in their binary form ("Trie Language Model"), read as tables.

N-grams stand backwards in it, the last word first, and are packed into bits without regard to bytes. Source: the layout
that pocketsphinx 5 reads (`lm_trie.c`, `lm_trie_quant.c`); its own writer of ARPA files fails on large models.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.errors import LanguageModelError
from model.lm.arpa import ABSENT_LOG10, LN10, Ngrams
from model.lm.trie import SPECIAL_WORDS, NgramTable
from model.machine.compiled import FloatArray, IntArray

Places = NDArray[np.int64]

_MAGIC = b"Trie Language Model"
_LOG_BASE = math.log(1.0001)  # of all its logarithms
_VALUE_BITS = 16  # places of a probability and of a back-off weight in tables of that many
_VALUES = 1 << _VALUE_BITS
_UNIGRAM = np.dtype([("log_prob", "<f4"), ("backoff", "<f4"), ("longer", "<u4")])
_PADDING = 8  # bytes behind each order's bits


def read_sphinx(path: Path) -> Ngrams:
    """Read a model. Raises: LanguageModelError when it is none, has no n-grams of two words, or ends early."""
    try:
        file = _File(path)
    except OSError as error:
        raise LanguageModelError(f"cannot read language model {path}: {error.strerror}") from error
    if file.take(len(_MAGIC)) != _MAGIC:
        raise LanguageModelError(f"{path} is not a binary n-gram model of CMU Sphinx")
    order = file.take(1)[0]
    if order < 2:
        raise LanguageModelError(f"{path} has n-grams of one word only")
    counts = file.numbers(order)
    file.numbers(1)  # the kind of quantisation, of which there is one
    values = [(file.logs(_VALUES), file.logs(_VALUES)) for _ in range(order - 2)]  # probabilities, back-off weights
    longest_values = file.logs(_VALUES)
    unigrams = np.frombuffer(file.take((counts[0] + 1) * _UNIGRAM.itemsize), _UNIGRAM)
    longer = unigrams["longer"].astype(np.int64)  # where the longer n-grams of each begin, and the last one's end
    tables = [_unigrams(unigrams[:-1])]
    word_bits = counts[0].bit_length()
    for n in range(2, order):
        sizes = (word_bits, _VALUE_BITS, _VALUE_BITS, counts[n].bit_length())
        words, weights, log_probs, pointers = _unpacked(file, counts[n - 1], int(longer[-1]) + 1, sizes)
        ids = _with_words_before(tables[-1].ids, longer, words[:-1])
        tables.append(NgramTable(ids, values[n - 2][0][log_probs[:-1]], values[n - 2][1][weights[:-1]]))
        longer = pointers
    words, log_probs = _unpacked(file, counts[-1], int(longer[-1]), (word_bits, _VALUE_BITS))
    ids = _with_words_before(tables[-1].ids, longer, words)
    tables.append(NgramTable(ids, longest_values[log_probs], np.zeros(len(ids), np.float32)))
    names = file.take(file.numbers(1)[0]).decode(errors="replace").split("\0")[:-1]
    if len(names) != counts[0]:
        raise LanguageModelError(f"{path} names {len(names)} words, and has {counts[0]}")
    return _in_order(names, tables)


class _File:
    """A file's bytes, one part after another."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._at = path, path.read_bytes(), 0

    def take(self, size: int) -> bytes:
        """Return the next bytes. Raises: LanguageModelError when there are fewer."""
        part = self._bytes[self._at : self._at + size]
        if len(part) < size:
            raise LanguageModelError(f"{self._path} ends early: {size} bytes expected at {self._at}")
        self._at += size
        return part

    def numbers(self, count: int) -> list[int]:
        """Return the next whole numbers."""
        numbers: list[int] = np.frombuffer(self.take(4 * count), "<u4").tolist()
        return numbers

    def logs(self, count: int) -> FloatArray:
        """Return the next logarithms (count,), as natural ones."""
        return _natural(np.frombuffer(self.take(4 * count), "<f4"))


def _natural(logs: FloatArray) -> FloatArray:
    return (logs.astype(np.float64) * _LOG_BASE).astype(np.float32)


def _unigrams(rows: NDArray[np.void]) -> NgramTable:
    ids = np.arange(len(rows), dtype=np.int32)[:, None]
    lowest = np.float32(ABSENT_LOG10 * LN10)
    return NgramTable(ids, np.maximum(_natural(rows["log_prob"]), lowest), _natural(rows["backoff"]))


def _unpacked(file: _File, room: int, rows: int, sizes: tuple[int, ...]) -> list[Places]:
    """Return each field (rows,) of an order's n-grams, of which the file has `room` and one that ends the last one."""
    width = sum(sizes)
    packed = np.frombuffer(file.take(((1 + room) * width + 7) // 8 + _PADDING), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(packed, 8)
    fields, start = [], 0
    for size in sizes:
        bits = np.arange(rows, dtype=np.int64) * width + start
        window = np.ascontiguousarray(windows[bits >> 3]).view("<u8")[:, 0]
        fields.append(((window >> (bits & 7).astype(np.uint64)) & np.uint64((1 << size) - 1)).astype(np.int64))
        start += size
    return fields


def _with_words_before(shorter: IntArray, longer: Places, words: Places) -> IntArray:
    """Return n-grams (n, order): each shorter one behind each word of its span of `words`."""
    return np.column_stack([words.astype(np.int32), np.repeat(shorter, np.diff(longer), axis=0)])


def _in_order(names: list[str], tables: list[NgramTable]) -> Ngrams:
    """Number the words as `Ngrams` does."""
    words = (*SPECIAL_WORDS, *sorted(set(names) - set(SPECIAL_WORDS)))
    index = {word: i for i, word in enumerate(words)}
    places = np.array([index[name] for name in names], np.int32)
    unigrams, *rest = tables
    log_prob = np.full(len(words), ABSENT_LOG10 * LN10, np.float32)
    backoff = np.zeros(len(words), np.float32)
    log_prob[places], backoff[places] = unigrams.log_prob, unigrams.backoff
    first = NgramTable(np.arange(len(words), dtype=np.int32)[:, None], log_prob, backoff)
    return Ngrams(words, (first, *(NgramTable(places[t.ids], t.log_prob, t.backoff) for t in rest)))
