"""Numbers in words, found and written with digits. Pure, English only.

`text_to_num` composes numbers; this module decides which words are a number where English is ambiguous: digits spoken
one by one stay apart, a pair of numbers may be a year, and "hundreds" is no number.
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
_ZERO = {"oh", "o"}  # digits only between digits; elsewhere a sigh, or the time
_NAMES = {**_DIGITS, **dict.fromkeys(_ZERO, "0")}
_LINKS = {"and", "point"}
_PARTS = {*_NAMES, *_TEENS, *_TENS, *_POWERS, *_LINKS}
_CENTURIES = {"seventeen": "17", "eighteen": "18", "nineteen": "19", "twenty": "20"}


@dataclass(frozen=True, slots=True)
class Number:
    """A number: words `start` to `end` (exclusive), and its text in digits."""

    start: int
    end: int
    text: str


def numbers(words: Sequence[Word]) -> list[Number]:
    """Find the numbers to write with digits, in order; they do not overlap."""
    texts = [word.text for word in words]
    joined = [i > 0 and words[i].start_s - words[i - 1].end_s < PAUSE_S for i in range(len(words))]
    found = _years_and_digits(texts, joined)
    taken = {i for number in found for i in range(number.start, number.end)}
    tokens = [_Token(text, joined[i], i in taken) for i, text in enumerate(texts)]
    for number in find_numbers(tokens, "en", SMALL):
        start = _start_of(texts, number.start, ordinal=number.is_ordinal)
        if start is not None and start not in taken:
            found.append(Number(start, number.end, number.text))
    return sorted(found, key=lambda number: number.start)


class _Token:
    """A word in the `Token` protocol of `text_to_num`."""

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


def _start_of(texts: Sequence[str], start: int, *, ordinal: bool) -> int | None:
    """Return the start of a number, its article included; None if its words are to stay."""
    before = texts[start - 1] if start else ""
    if ordinal:  # "a third of it", "one fifth", "a tenth time"
        return None if before in ("a", "one") else start
    if texts[start] not in _POWERS:
        return start
    # "a hundred" is 100, and of "a few hundred" and "half a million" no part is
    return start - 1 if before == "a" and (start < 2 or texts[start - 2] != "half") else None


def _years_and_digits(texts: Sequence[str], joined: Sequence[bool]) -> list[Number]:
    """Find years, and digits spoken one by one, each a number of its own."""
    found: list[Number] = []
    for begin, end in _runs(_PARTS, texts, joined):
        found += _year(texts, begin, end) or _digits(texts, joined, begin, end)
    return found


def _runs(allowed: Container[str], texts: Sequence[str], joined: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Find runs of allowed words without a pause, less the links and zeros ("and", "point", "oh") at their ends."""
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
    """Match a run that is a century and two more digits, nothing else: "nineteen eighty four", "twenty oh five"."""
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
    """Find two or more digits in a row that are no part of a longer number: telephone numbers, room numbers."""
    found: list[Number] = []
    for first, last in _runs(_NAMES, texts[begin:end], joined[begin:end]):
        i, stop = begin + first, begin + last
        before, after = texts[i - 1] if i > begin else "", texts[stop] if stop < end else ""
        i += before in _POWERS or before in _TENS or before == "and"  # "twenty one", "a hundred and one"
        stop -= after in _POWERS or after == "point"
        if stop - i > 1 and before != "point":
            found += [Number(at, at + 1, _NAMES[texts[at]]) for at in range(i, stop)]
    return found
