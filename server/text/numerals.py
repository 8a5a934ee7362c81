"""Numbers in words, found and written with digits. Pure, and English only.

The library knows how a number is put together; what is decided here is what is a number at all, when English leaves it
open: digits that are told one by one stay apart, a pair of numbers may be a year, and "hundreds" is no hundred.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from text_to_num import find_numbers

from model.ctc.words import Word

PAUSE_S = 0.5  # a silence this long separates two numbers: "twenty … five" is not 25
SMALL = 4.0  # a number below it that stands alone stays a word: "one by one", "two or three"

_DIGITS = {
    "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
    "nine": "9",
}  # fmt: skip
_TEENS = {
    "ten": "10", "eleven": "11", "twelve": "12", "thirteen": "13", "fourteen": "14", "fifteen": "15", "sixteen": "16",
    "seventeen": "17", "eighteen": "18", "nineteen": "19",
}  # fmt: skip
_TENS = {
    "twenty": "2", "thirty": "3", "forty": "4", "fifty": "5", "sixty": "6", "seventy": "7", "eighty": "8",
    "ninety": "9",
}  # fmt: skip
_POWERS = {"hundred", "thousand", "million", "billion", "trillion"}
_ZERO = {"oh", "o"}  # between digits alone; anywhere else it is a sigh, or the time
_NAMES = {**_DIGITS, **dict.fromkeys(_ZERO, "0")}
_LINKS = {"and", "point"}
_PARTS = {*_NAMES, *_TEENS, *_TENS, *_POWERS, *_LINKS}
_CENTURIES = {"seventeen": "17", "eighteen": "18", "nineteen": "19", "twenty": "20"}


@dataclass(frozen=True, slots=True)
class Number:
    """The words from `start` up to `end` are this number; `text` has digits."""

    start: int
    end: int
    text: str


def numbers(words: Sequence[Word]) -> list[Number]:
    """Find the numbers to write with digits, in order; they do not overlap."""
    texts = [word.text for word in words]
    joined = [i > 0 and words[i].start_s - words[i - 1].end_s < PAUSE_S for i in range(len(words))]
    found = _told(texts, joined)
    taken = {i for number in found for i in range(number.start, number.end)}
    tokens = [_Token(text, joined[i], i in taken) for i, text in enumerate(texts)]
    for number in find_numbers(tokens, "en", SMALL):
        start = _beginning(texts, number.start, ordinal=number.is_ordinal)
        if start is not None and start not in taken:
            found.append(Number(start, number.end, number.text))
    return sorted(found, key=lambda number: number.start)


class _Token:
    """A word as `text_to_num` wants it: its `Token` protocol."""

    def __init__(self, text: str, joined: bool, taken: bool) -> None:
        self._text = text
        self._joined = joined
        self._taken = taken

    def text(self) -> str:
        return self._text

    def nt_separated(self, previous: _Token) -> bool:  # noqa: ARG002 - the protocol's signature
        return not self._joined

    def not_a_number_part(self) -> bool:
        # "hundreds of people", "two thirds": no number's name ends with an s
        return self._taken or self._text in _ZERO or self._text.endswith("s")


def _beginning(texts: Sequence[str], start: int, *, ordinal: bool) -> int | None:
    """Return where a number begins, its article included; None for words that are better left alone."""
    before = texts[start - 1] if start else ""
    if ordinal:  # "a third of it", "one fifth", "a tenth time"
        return None if before in ("a", "one") else start
    if texts[start] not in _POWERS:
        return start
    # "a hundred" is 100, and of "a few hundred" and "half a million" no part is
    return start - 1 if before == "a" and (start < 2 or texts[start - 2] != "half") else None


def _told(texts: Sequence[str], joined: Sequence[bool]) -> list[Number]:
    """Find years, and digits that are told one by one, each a number of its own."""
    found: list[Number] = []
    for begin, end in _stretches(_PARTS, texts, joined):
        found += _year(texts, begin, end) or _digits(texts, joined, begin, end)
    return found


def _stretches(allowed: Container[str], texts: Sequence[str], joined: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Where words of a kind follow each other without a pause; not begun or ended by what is no number by itself."""
    begin = 0
    while begin < len(texts):
        end = begin + 1
        if texts[begin] in allowed:
            while end < len(texts) and joined[end] and texts[end] in allowed:
                end += 1
            first, last = begin, end
            while first < last and texts[first] in _ZERO | _LINKS:
                first += 1
            while last > first and texts[last - 1] in _ZERO | _LINKS:
                last -= 1
            if first < last:
                yield first, last
        begin = end


def _year(texts: Sequence[str], begin: int, end: int) -> list[Number]:
    """A stretch that is a century and two more digits, and nothing else: "nineteen eighty four", "twenty oh five"."""
    century, rest = _CENTURIES.get(texts[begin]), tuple(texts[begin + 1 : end])
    if century is None:
        return []
    match rest:
        case (one,) if one in _TEENS:
            tail = _TEENS[one]
        case (one,) if one in _TENS:
            tail = _TENS[one] + "0"
        case (one, two) if two in _DIGITS and two != "zero" and (one in _TENS or one in _ZERO):
            tail = _TENS.get(one, "0") + _DIGITS[two]
        case _:
            return []
    return [Number(begin, end, century + tail)]


def _digits(texts: Sequence[str], joined: Sequence[bool], begin: int, end: int) -> list[Number]:
    """Digits in a row, two or more, that are no part of a longer number: a telephone's number, a room's."""
    found: list[Number] = []
    for first, last in _stretches(_NAMES, texts[begin:end], joined[begin:end]):
        i, stop = begin + first, begin + last
        before, after = texts[i - 1] if i > begin else "", texts[stop] if stop < end else ""
        i += before in _POWERS or before in _TENS or before == "and"  # "twenty one", "a hundred and one"
        stop -= after in _POWERS or after == "point"
        if stop - i > 1 and before != "point":
            found += [Number(at, at + 1, _NAMES[texts[at]]) for at in range(i, stop)]
    return found
