"""Conversion of spoken numbers to digits. Pure, English only.

`text_to_num` composes numbers. This module decides which words are a number where English is ambiguous: digits spoken
one by one stay separate, a pair of numbers may be a year, "hundreds" is not a number, and "thirty second" is an ordinal
or a duration.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from text_to_num import find_numbers

from model.ctc.words import Word
from server.text.spoken_digits import DIGITS, TEENS

PAUSE_S = 0.5  # a pause of this length separates two numbers: "twenty … five" is not 25
SMALL = 4.0  # smaller numbers without another number next to them stay words: "one by one", "two or three"

_TENS = {
    "twenty": "2", "thirty": "3", "forty": "4", "fifty": "5", "sixty": "6", "seventy": "7", "eighty": "8",
    "ninety": "9",
}  # fmt: skip
_POWERS = {"hundred", "thousand", "million", "billion", "trillion"}
_ZERO = {"oh", "o"}  # digits only among digits; elsewhere an interjection or part of a time
_NAMES = {**DIGITS, **dict.fromkeys(_ZERO, "0")}
_TIMES = {"double": 2, "triple": 3, "treble": 3}
_LINKS = {"and", "point"}
_PARTS = {*_NAMES, *TEENS, *_TENS, *_POWERS, *_LINKS}
_CENTURIES = {"seventeen": "17", "eighteen": "18", "nineteen": "19", "twenty": "20"}
_MONTHS = {
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
}  # fmt: skip
_ORDINAL_BEFORE = {"the", "my", "your", "his", "her", "its", "our", "their", "this", "that", "every"} | _MONTHS
_ORDINAL_AFTER = {
    "of", "street", "avenue", "floor", "century", "birthday", "anniversary", "president", "congress", "amendment",
    "place", "edition",
} | _MONTHS  # fmt: skip
_TIMED = {  # "the thirty second timer" is not the 32nd timer
    "ad", "break", "clip", "clock", "commercial", "countdown", "delay", "gap", "hold", "interval", "intervals",
    "limit", "mark", "pause", "penalty", "period", "recording", "rest", "rule", "spot", "sprint", "timeout", "timer",
    "video", "wait", "warning", "window",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Number:
    """A number: words `start` to `end` (exclusive) and its text in digits."""

    start: int
    end: int
    text: str


def numbers(words: Sequence[Word]) -> list[Number]:
    """Return the numbers to write in digits, in order, without overlap."""
    texts = [word.text for word in words]
    joined = [i > 0 and words[i].start_s - words[i - 1].end_s < PAUSE_S for i in range(len(words))]
    found = _years_and_versions(texts, joined)
    taken = _words_of(found)
    digits = [number for number in _digits(texts, joined) if number.start not in taken]
    found += digits
    taken |= _words_of(digits) | {i for i in range(len(texts)) if _is_duration(texts, joined, i)}
    tokens = [_Token(text, joined[i], i in taken) for i, text in enumerate(texts)]
    for number in find_numbers(tokens, "en", SMALL):
        start = _start_of(texts, number.start, ordinal=number.is_ordinal)
        if start is None or start in taken or _stands_alone(texts, start, number.end):
            continue
        found.append(Number(start, number.end, number.text))
    return sorted(found, key=lambda number: number.start)


def _words_of(found: Sequence[Number]) -> set[int]:
    return {i for number in found for i in range(number.start, number.end)}


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
        # "hundreds of people", "two thirds": number words do not end with an s
        return self._taken or self._text in _ZERO or self._text.endswith("s")


def _start_of(texts: Sequence[str], start: int, *, ordinal: bool) -> int | None:
    """Return the start of a number including its article; None if its words are not converted."""
    before = texts[start - 1] if start else ""
    if ordinal:  # "a third of it", "one fifth", "a tenth time"
        return None if before in ("a", "one") else start
    if texts[start] not in _POWERS:
        return start
    # "a hundred" is 100; "a few hundred" and "half a million" are not converted
    return start - 1 if before == "a" and (start < 2 or texts[start - 2] != "half") else None


def _stands_alone(texts: Sequence[str], start: int, end: int) -> bool:
    """Whether this is a number below `SMALL` without another number next to it, as in "one or two"."""
    if end - start > 1 or texts[start] not in ("one", "two", "three"):
        return False
    numerals = _PARTS - _LINKS - _ZERO
    neighbors = (texts[at] for at in (start - 1, end) if 0 <= at < len(texts))
    return not numerals.intersection(neighbors)


def _is_duration(texts: Sequence[str], joined: Sequence[bool], at: int) -> bool:
    """Whether word `at` is the unit of time after a number that could be an ordinal: "a thirty second timer"."""
    if texts[at] != "second" or not joined[at] or texts[at - 1] not in _TENS.keys() | _POWERS:
        return False
    start = at - 1
    while start > 0 and joined[start] and texts[start - 1] in _PARTS:
        start -= 1
    before = texts[start - 1] if start else ""
    after = texts[at + 1] if at + 1 < len(texts) and joined[at + 1] else ""
    return after in _TIMED or not (before in _ORDINAL_BEFORE or after in _ORDINAL_AFTER)


def _years_and_versions(texts: Sequence[str], joined: Sequence[bool]) -> list[Number]:
    """Return years, and numbers with several points: "version one point two point three", addresses."""
    found: list[Number] = []
    for begin, end in _runs(_PARTS, texts, joined):
        found += _year(texts, begin, end) or _version(texts, begin, end)
    return found


def _runs(allowed: Container[str], texts: Sequence[str], joined: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield runs of allowed words without a pause; links and zeros ("and", "point", "oh") are trimmed at both ends."""
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
    """Match a run of a century and two more digits only: "nineteen eighty four", "twenty oh five"."""
    century, rest = _CENTURIES.get(texts[begin]), tuple(texts[begin + 1 : end])
    if century is None:
        return []
    match rest:
        case (one,) if one in TEENS:
            tail = TEENS[one]
        case (one,) if one in _TENS:
            tail = _TENS[one] + "0"
        case (one, two) if two in DIGITS and two != "zero" and (one in _TENS or one in _ZERO):
            tail = _TENS.get(one, "0") + DIGITS[two]
        case _:
            return []
    return [Number(begin, end, century + tail)]


def _version(texts: Sequence[str], begin: int, end: int) -> list[Number]:
    """Match a run with two points or more; the words between two points become one number."""
    parts = " ".join(texts[begin:end]).split(" point ")
    if len(parts) < 3:
        return []
    written = [_together(part.split()) for part in parts]
    return [Number(begin, end, ".".join(written))] if all(written) else []


def _together(texts: Sequence[str]) -> str:
    """Return numbers without spaces, "one ninety two" as 192, or "" if there are other words."""
    plain = ["zero" if text in _ZERO else text for text in texts]
    found = find_numbers([_Token(text, joined=True, taken=False) for text in plain], "en", 0)
    covered = sum(number.end - number.start for number in found) == len(texts)
    return "".join(number.text for number in found) if covered else ""


def _digits(texts: Sequence[str], joined: Sequence[bool]) -> list[Number]:
    """Return two or more digits in a row that are not part of a longer number: telephone numbers, room numbers."""
    found: list[Number] = []
    at = 0
    while at < len(texts):
        row: list[Number] = []
        while at < len(texts) and (not row or joined[at]) and (digit := _digit(texts, joined, at)) is not None:
            row.append(digit)
            at = digit.end
        if row:
            found += _whole(texts, joined, row)
        else:
            at += 1
    return found


def _digit(texts: Sequence[str], joined: Sequence[bool], at: int) -> Number | None:
    """Return the digit at this word, None if it is not one; "double five" gives two digits."""
    if texts[at] in _NAMES:
        return Number(at, at + 1, _NAMES[texts[at]])
    if texts[at] in _TIMES and at + 1 < len(texts) and joined[at + 1] and texts[at + 1] in _NAMES:
        return Number(at, at + 2, " ".join([_NAMES[texts[at + 1]]] * _TIMES[texts[at]]))
    return None


def _whole(texts: Sequence[str], joined: Sequence[bool], row: list[Number]) -> list[Number]:
    """Return the row without digits of adjacent numbers and without interjections; empty if fewer than two remain.

    "oh" at an end counts as a digit in a row of three or more: "oh seven nine". At the right end a pause must follow.
    """
    end = row[-1].end
    paused = end == len(texts) or not joined[end]
    several = len(row) > 2 and any(texts[digit.start] not in _ZERO for digit in row)
    while row and not (several and paused) and texts[row[-1].start] in _ZERO:
        row = row[:-1]
    while row and not several and texts[row[0].start] in _ZERO:
        row = row[1:]
    if not row:
        return []
    start, end = row[0].start, row[-1].end
    before = texts[start - 1] if joined[start] else ""
    after = texts[end] if end < len(texts) and joined[end] else ""
    first = before in _POWERS or before in _TENS or before == "and"  # "twenty one", "a hundred and one"
    last = len(row) - (after in _POWERS or after == "point")
    return row[first:last] if last - first > 1 and before != "point" else []
