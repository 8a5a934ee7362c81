"""Rows of n-grams in ARPA files, parsed by compiled code.

It reads what tools write: a decimal number of up to 15 digits, the words, perhaps another number. It stops at
any other line, which `arpa` then reads, or refuses with the number of the line. Both give the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import ZERO, FloatArray, IntArray, compiled, entry_point

Bytes = NDArray[np.uint8]
Arrays = tuple[IntArray, FloatArray, FloatArray]

LN10 = math.log(10.0)
# KenLM's log-probability of an unknown word where the model has no <unk>; some tools write -inf for a probability of 0.
ABSENT_LOG10 = -100.0
# Rounding in the file may put the logarithm of a probability of 1 slightly above 0.
LARGEST_LOG10 = 1e-3

ROWS = 65_536  # parsed at a time
# Integers of this many digits, and powers of ten up to theirs, are exact in float64: their quotient is rounded once.
_MOST_DIGITS = 15
_SPACE, _TAB, _CARRIAGE_RETURN, _LINE_FEED = 32, 9, 13, 10
_PLUS, _MINUS, _POINT, _ZERO = 43, 45, 46, 48
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@dataclass(frozen=True, slots=True)
class WordTable:
    """Hash table of the words' bytes, with open addressing.

    `text` holds the names one after the other, name i ends at `ends[i]` and stands for word `ids[i]`; `slots` holds
    names by their hash, -1 where there is none, and is at most half full.
    """

    text: Bytes
    ends: IntArray
    ids: IntArray
    slots: IntArray

    @classmethod
    def of(cls, ids: Mapping[bytes, int]) -> WordTable:
        """Build the table of these names; none is empty."""
        text = np.frombuffer(b"".join(ids), np.uint8)
        ends = np.cumsum([len(name) for name in ids], dtype=np.int32)
        slots = np.full(1 << (2 * len(ids)).bit_length(), -1, np.int32)
        fill_slots(text, ends, slots)
        return cls(text, ends, np.fromiter(ids.values(), np.int32), slots)


class Rows:
    """Reused memory of parsed rows of one order: word ids (ROWS, order), natural logs (ROWS,) float32."""

    def __init__(self, order: int, words: WordTable) -> None:
        self._words = words
        self.ids = np.empty((ROWS, order), np.int32)
        self.log_probs, self.backoffs = np.empty(ROWS, np.float32), np.empty(ROWS, np.float32)

    def parse(self, block: bytes, at: int, most: int) -> tuple[Arrays, int, int]:
        """Parse up to `most` rows from position `at` of a block of whole lines.

        Return ids, probabilities and back-off weights, the position after them, and the number of lines, empty ones
        included.
        """
        words = self._words
        count, at, lines = parse_rows(
            np.frombuffer(block, np.uint8),
            at,
            (words.text, words.ends, words.ids, words.slots),
            min(most, ROWS),
            self.ids,
            self.log_probs,
            self.backoffs,
        )
        arrays = self.ids[:count].copy(), self.log_probs[:count].copy(), self.backoffs[:count].copy()
        return arrays, int(at), int(lines)


@compiled
def _hash(text: Bytes, begin: int, end: int) -> int:
    """FNV-1a of 64 bits; its low bits alone are used."""
    value = _FNV_OFFSET
    for i in range(begin, end):
        value = (value ^ np.uint64(text[i])) * _FNV_PRIME
    return int(np.int64(value & np.uint64(0x7FFFFFFFFFFFFFFF)))


@entry_point
def fill_slots(text: Bytes, ends: IntArray, slots: IntArray) -> None:
    """Put all names into the empty `slots` of a `WordTable`."""
    begin = 0
    for name in range(len(ends)):
        slot = _hash(text, begin, ends[name]) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = name
        begin = ends[name]


@compiled
def _found(text: Bytes, begin: int, end: int, words: tuple[Bytes, IntArray, IntArray, IntArray]) -> int:
    """Return the id of the word at `begin` to `end` - 1, or -1."""
    names, ends, ids, slots = words
    slot = _hash(text, begin, end) & (len(slots) - 1)
    while slots[slot] >= 0:
        name = slots[slot]
        first = ends[name - 1] if name else 0
        same = ends[name] - first == end - begin
        i = 0
        while same and i < end - begin:
            same = names[first + i] == text[begin + i]
            i += 1
        if same:
            return int(ids[name])
        slot = (slot + 1) & (len(slots) - 1)
    return -1


@compiled
def _after_spaces(text: Bytes, at: int, end: int) -> int:
    while at < end and (text[at] == _SPACE or _TAB <= text[at] <= _CARRIAGE_RETURN):
        at += 1
    return at


@compiled
def _after_field(text: Bytes, at: int, end: int) -> int:
    while at < end and not (text[at] == _SPACE or _TAB <= text[at] <= _CARRIAGE_RETURN):
        at += 1
    return at


@compiled
def _value(text: Bytes, begin: int, end: int) -> float:
    """Return the decimal number at `begin` to `end` - 1, correctly rounded; NaN for any other form."""
    at = begin
    negative = at < end and text[at] == _MINUS
    if at < end and (text[at] == _MINUS or text[at] == _PLUS):
        at += 1
    integer, power, digits, pointed = ZERO, 1.0, ZERO, False
    while at < end:
        digit = int(np.int64(text[at])) - _ZERO
        if 0 <= digit <= 9:
            integer = integer * 10 + digit
            digits += 1
            if pointed:
                power *= 10.0
        elif text[at] == _POINT and not pointed:
            pointed = True
        else:
            return math.nan
        if digits > _MOST_DIGITS:
            return math.nan
        at += 1
    if digits == 0:
        return math.nan
    value = np.float64(integer) / power
    return -value if negative else value


@compiled
def _parse_row(  # noqa: PLR0917
    text: Bytes,
    begin: int,
    end: int,
    words: tuple[Bytes, IntArray, IntArray, IntArray],
    row: int,
    ids: IntArray,
    log_probs: FloatArray,
    backoffs: FloatArray,
) -> bool:
    """Parse one line, which begins with no space; return whether it has the form that tools write."""
    place = _after_field(text, begin, end)
    log_prob = _value(text, begin, place)
    if not log_prob <= LARGEST_LOG10:  # refuses NaN too, as which a title reads
        return False
    for word in range(ids.shape[1]):
        begin = _after_spaces(text, place, end)
        place = _after_field(text, begin, end)
        found = _found(text, begin, place, words)
        if found < 0:
            return False
        ids[row, word] = found
    begin = _after_spaces(text, place, end)
    place = _after_field(text, begin, end)
    backoff = _value(text, begin, place) if begin < end else 0.0
    if math.isnan(backoff) or _after_spaces(text, place, end) < end:
        return False
    log_probs[row] = min(max(log_prob, ABSENT_LOG10), 0.0) * LN10
    backoffs[row] = max(backoff, ABSENT_LOG10) * LN10
    return True


@entry_point
def parse_rows(  # noqa: PLR0917 - compiled code has no keywords
    text: Bytes,
    at: int,
    words: tuple[Bytes, IntArray, IntArray, IntArray],
    most: int,
    ids: IntArray,
    log_probs: FloatArray,
    backoffs: FloatArray,
) -> tuple[int, int, int]:
    """Parse lines from `at` into rows 0 to `most` - 1, up to the end or a line of another form.

    `words` are the arrays of a `WordTable`. Return the numbers of rows, the position of the next line, and the number
    of lines before it.
    """
    row, lines = ZERO, ZERO
    while at < len(text) and row < most:
        end = at
        while end < len(text) and text[end] != _LINE_FEED:
            end += 1
        begin = _after_spaces(text, at, end)
        if begin < end:
            if not _parse_row(text, begin, end, words, row, ids, log_probs, backoffs):
                break
            row += 1
        lines += 1
        at = min(end + 1, len(text))
    return row, at, lines
