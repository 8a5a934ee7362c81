"""Reader of CMU Sphinx's binary n-gram models ("Trie Language Model").

N-grams are stored in reverse, the last word first, and bit-packed across byte boundaries. Source: the layout that
pocketsphinx 5 reads (`lm_trie.c`, `lm_trie_quant.c`); its own writer of ARPA files fails on large models.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.errors import LanguageModelError
from model.lm.arpa import Ngrams
from model.lm.arpa_rows import ABSENT_LOG10, LN10
from model.lm.trie import SPECIAL_WORDS, NgramTable
from model.machine.compiled import FloatArray, IntArray

Places = NDArray[np.int64]

_MAGIC = b"Trie Language Model"
_LOG_BASE = math.log(1.0001)  # base of all logarithms in the file
_VALUE_BITS = 16  # bits of an index into the tables of probabilities and back-off weights
_VALUES = 1 << _VALUE_BITS
_UNIGRAM = np.dtype([("log_prob", "<f4"), ("backoff", "<f4"), ("longer", "<u4")])
_PADDING = 8  # bytes after each order's bits


def read_sphinx(path: Path) -> Ngrams:
    """Read a model. Raises: LanguageModelError for another kind of file, a unigram model, or a truncated file."""
    try:
        file = _File(path)
    except OSError as error:
        raise LanguageModelError(f"cannot read language model {path}: {error.strerror}") from error
    if file.take(len(_MAGIC)) != _MAGIC:
        raise LanguageModelError(f"{path} is not a binary n-gram model of CMU Sphinx")
    order = file.take(1)[0]
    if order < 2:
        raise LanguageModelError(f"{path} is a unigram model; n-grams of at least two words are required")
    counts = file.numbers(order)
    file.numbers(1)  # kind of quantization; only one exists
    values = [(file.logs(_VALUES), file.logs(_VALUES)) for _ in range(order - 2)]  # probabilities, back-off weights
    longest_values = file.logs(_VALUES)
    unigrams = np.frombuffer(file.take((counts[0] + 1) * _UNIGRAM.itemsize), _UNIGRAM)
    longer = unigrams["longer"].astype(np.int64)  # index of the first longer n-gram of each, and a final end
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
        raise LanguageModelError(f"{path} is damaged: {len(names)} words, but {counts[0]} unigrams")
    return _in_order(names, tables)


class _File:
    """Sequential reader of a file's bytes."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._at = path, path.read_bytes(), 0

    def take(self, size: int) -> bytes:
        """Return the next bytes. Raises: LanguageModelError if the file ends before."""
        part = self._bytes[self._at : self._at + size]
        if len(part) < size:
            raise LanguageModelError(f"{self._path} ends early: expected {size} bytes at offset {self._at}")
        self._at += size
        return part

    def numbers(self, count: int) -> list[int]:
        """Return the next integers."""
        numbers: list[int] = np.frombuffer(self.take(4 * count), "<u4").tolist()
        return numbers

    def logs(self, count: int) -> FloatArray:
        """Return the next logarithms (count,), converted to natural ones."""
        return _natural(np.frombuffer(self.take(4 * count), "<f4"))


def _natural(logs: FloatArray) -> FloatArray:
    return (logs.astype(np.float64) * _LOG_BASE).astype(np.float32)


def _unigrams(rows: NDArray[np.void]) -> NgramTable:
    ids = np.arange(len(rows), dtype=np.int32)[:, None]
    lowest = np.float32(ABSENT_LOG10 * LN10)
    return NgramTable(ids, np.maximum(_natural(rows["log_prob"]), lowest), _natural(rows["backoff"]))


def _unpacked(file: _File, room: int, rows: int, sizes: tuple[int, ...]) -> list[Places]:
    """Fields (rows,) of the n-grams of one order; the file has `room` n-grams and one more that marks the end."""
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
    """N-grams (n, order): each word of a shorter n-gram's span of `words`, followed by that n-gram."""
    return np.column_stack([words.astype(np.int32), np.repeat(shorter, np.diff(longer), axis=0)])


def _in_order(names: list[str], tables: list[NgramTable]) -> Ngrams:
    """Renumber the words in the order of `Ngrams`."""
    words = (*SPECIAL_WORDS, *sorted(set(names) - set(SPECIAL_WORDS)))
    index = {word: i for i, word in enumerate(words)}
    places = np.array([index[name] for name in names], np.int32)
    unigrams, *rest = tables
    log_prob = np.full(len(words), ABSENT_LOG10 * LN10, np.float32)
    backoff = np.zeros(len(words), np.float32)
    log_prob[places], backoff[places] = unigrams.log_prob, unigrams.backoff
    first = NgramTable(np.arange(len(words), dtype=np.int32)[:, None], log_prob, backoff)
    return Ngrams(words, (first, *(NgramTable(places[t.ids], t.log_prob, t.backoff) for t in rest)))
