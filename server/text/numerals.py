"""Conversion of spoken numbers to digits: cardinals, ordinals, years, digits in a row. Pure, English only.

`text_to_num` composes numbers. This module decides which words are a number where English is ambiguous: digits spoken
one by one are one number, a pair of numbers may be a year, "hundreds" is not a number, and "thirty second" is an
ordinal or a duration.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass

from text_to_num import find_numbers

from server.text.calendar import MONTHS
from server.text.line import Line, Span
from server.text.spoken_digits import DIGITS, TEENS, TENS

SMALL = 4.0  # smaller numbers without another number next to them stay words: "one by one", "two or three"
LONG = 5  # digits of a number from which thousands are set apart, as in 10,000

_POWERS = {"hundred", "thousand", "million", "billion", "trillion"}
_THOUSANDS = _POWERS - {"hundred"}
_ZERO = {"oh", "o"}  # digits only among digits; elsewhere an interjection or part of a time
_NAMES = {**DIGITS, **dict.fromkeys(_ZERO, "0")}
_TIMES = {"double": 2, "triple": 3, "treble": 3}
_LINKS = {"and", "point"}
_PARTS = {*_NAMES, *TEENS, *TENS, *_POWERS, *_LINKS}
_CENTURIES = {"seventeen": "17", "eighteen": "18", "nineteen": "19", "twenty": "20"}
_ORDINAL_BEFORE = {"the", "my", "your", "his", "her", "its", "our", "their", "this", "that", "every"} | MONTHS
_ORDINAL_AFTER = {
    "of", "street", "avenue", "floor", "century", "birthday", "anniversary", "president", "congress", "amendment",
    "place", "edition",
} | MONTHS  # fmt: skip
_TIMED = {  # "the thirty second timer" is not the 32nd timer
    "ad", "break", "clip", "clock", "commercial", "countdown", "delay", "gap", "hold", "interval", "intervals",
    "limit", "mark", "pause", "penalty", "period", "recording", "rest", "rule", "spot", "sprint", "timeout", "timer",
    "video", "wait", "warning", "window",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a line in order, without overlap; `rows` are those of them that were said digit by digit."""

    found: list[Span]
    rows: frozenset[Span]


def numbers(line: Line, taken: Collection[int] = ()) -> Numbers:
    """Return the numbers to write in digits among the words that are not `taken`."""
    taken = set(taken)
    texts, joined = ["" if at in taken else text for at, text in enumerate(line.texts)], line.joined
    found = [number for number in _years_and_versions(texts, joined) if taken.isdisjoint(_words(number))]
    for number in found:
        taken.update(_words(number))
    rows = list(_digits(texts, joined, taken))
    for row in rows:
        taken.update(_words(row))
    found += rows
    taken |= {i for i in range(len(texts)) if _is_duration(texts, joined, i)}
    tokens = [_Token(text, joined[i], i in taken) for i, text in enumerate(texts)]
    for number in find_numbers(tokens, "en", SMALL):
        start = _start_of(texts, number.start, ordinal=number.is_ordinal)
        if start is None or start in taken or _stands_alone(texts, start, number.end):
            continue
        found.append(Span(start, number.end, _grouped(number.text, texts[start : number.end])))
    return Numbers(sorted(found, key=lambda number: number.start), frozenset(rows))


def _words(number: Span) -> range:
    return range(number.start, number.end)


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


def _grouped(text: str, words: Sequence[str]) -> str:
    """Return a number with its thousands set apart, and a round one with its power as a word: "2 million"."""
    if not text.isdecimal() or not _THOUSANDS.intersection(words):
        return text
    power = next((word for word in ("trillion", "billion", "million") if words[-1] == word), None)
    if power is not None and len(_THOUSANDS.intersection(words)) == 1:
        return f"{int(text) // {'million': 10**6, 'billion': 10**9, 'trillion': 10**12}[power]} {power}"
    return f"{int(text):,}" if len(text) >= LONG else text


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
    if texts[at] != "second" or not joined[at] or texts[at - 1] not in TENS.keys() | _POWERS:
        return False
    start = at - 1
    while start > 0 and joined[start] and texts[start - 1] in _PARTS:
        start -= 1
    before = texts[start - 1] if start else ""
    after = texts[at + 1] if at + 1 < len(texts) and joined[at + 1] else ""
    return after in _TIMED or not (before in _ORDINAL_BEFORE or after in _ORDINAL_AFTER)


def _years_and_versions(texts: Sequence[str], joined: Sequence[bool]) -> list[Span]:
    """Return years, and numbers with several points: "version one point two point three", addresses."""
    found: list[Span] = []
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


def _year(texts: Sequence[str], begin: int, end: int) -> list[Span]:
    """Match a run of a century and two more digits only: "nineteen eighty four", "twenty oh five"."""
    century, rest = _CENTURIES.get(texts[begin]), tuple(texts[begin + 1 : end])
    if century is None:
        return []
    match rest:
        case (one,) if one in TEENS:
            tail = TEENS[one]
        case (one,) if one in TENS:
            tail = TENS[one]
        case (one, two) if two in DIGITS and two != "zero" and (one in TENS or one in _ZERO):
            tail = TENS.get(one, "0")[0] + DIGITS[two]
        case _:
            return []
    return [Span(begin, end, century + tail)]


def _version(texts: Sequence[str], begin: int, end: int) -> list[Span]:
    """Match a run with two points or more; the words between two points become one number."""
    parts = " ".join(texts[begin:end]).split(" point ")
    if len(parts) < 3:
        return []
    written = [together(part.split()) for part in parts]
    return [Span(begin, end, ".".join(written))] if all(written) else []


def together(texts: Sequence[str]) -> str:
    """Return numbers without spaces, "one ninety two" as 192, or "" if there are other words."""
    plain = ["zero" if text in _ZERO else text for text in texts]
    found = find_numbers([_Token(text, joined=True, taken=False) for text in plain], "en", 0)
    covered = sum(number.end - number.start for number in found) == len(texts)
    return "".join(number.text for number in found) if covered else ""


def _digits(texts: Sequence[str], joined: Sequence[bool], taken: Container[int]) -> Iterator[Span]:
    """Yield two or more digits in a row that are not part of a longer number: telephone numbers, room numbers."""
    at = 0
    while at < len(texts):
        row: list[Span] = []
        while at < len(texts) and (not row or joined[at]) and (digit := _digit(texts, joined, at, taken)) is not None:
            row.append(digit)
            at = digit.end
        if row:
            row = _whole(texts, joined, row)
            if row:
                yield Span(row[0].start, row[-1].end, "".join(digit.text for digit in row))
        else:
            at += 1


def _digit(texts: Sequence[str], joined: Sequence[bool], at: int, taken: Container[int]) -> Span | None:
    """Return the digit at this word, None if it is not one; "double five" gives two digits."""
    if at in taken:
        return None
    if texts[at] in _NAMES:
        return Span(at, at + 1, _NAMES[texts[at]])
    if texts[at] in _TIMES and at + 1 < len(texts) and joined[at + 1] and texts[at + 1] in _NAMES:
        return Span(at, at + 2, _NAMES[texts[at + 1]] * _TIMES[texts[at]])
    return None


def _whole(texts: Sequence[str], joined: Sequence[bool], row: list[Span]) -> list[Span]:
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
    first = before in _POWERS or before in TENS or before == "and"  # "twenty one", "a hundred and one"
    last = len(row) - (after in _POWERS or after == "point")
    row = row[first:last]
    double = len(row) == 1 and len(row[0].text) > 1 and before not in ("a", "the")  # "it ends in double four"
    return row if (len(row) > 1 or double) and before != "point" else []
