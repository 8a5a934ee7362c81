"""Number words as items of one value: digits, cardinals, ordinals, in a line of words. Pure, English only.

`numerals` decides which items are one number. A cardinal is read as far as English grammar allows: "two hundred and
three hundred" are 200 and 300, not 203. `POWERS` without a number before them ("a few hundred") have no value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from server.text.line import Line
from server.text.numbers.calendar import MONTHS
from server.text.numbers.spoken_digits import DIGITS, ORDINALS, TEENS, TENS

LONG = 10_000  # from here thousands are set apart: 10,000

POWERS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ZEROS = {"oh", "o"}  # digits only among digits; elsewhere an interjection or part of a time
_TIMES = {"double": 2, "triple": 3, "treble": 3}
_ORDINAL_POWERS = {"hundredth": 100, "thousandth": 1_000, "millionth": 10**6}
_ORDINALS = {word: int(text) for word, text in ORDINALS.items() if not word.endswith("ies")}
_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}
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
_PARTS = {*DIGITS, *TEENS, *TENS, "hundred", "and", *POWERS}
_PAIRS = TEENS | TENS
_ROW = {*DIGITS, *_PAIRS, *_ZEROS, *_TIMES}
_HALVED = {"half", "many", "such"}  # before "a hundred" that is no 100


@dataclass(frozen=True, slots=True)
class Item:
    """Words `start` to `end` with one value. `kind`: digit, zero (oh), pair (10 to 99), large, ordinal, power."""

    start: int
    end: int
    text: str
    kind: str


def is_row(texts: Collection[str]) -> bool:
    """Whether words are digits and pairs of digits only: "eight oh five", "forty seven"."""
    return all(text in _ROW for text in texts) and any(text in DIGITS or text in _PAIRS for text in texts)


class NumberWords:
    """The words of a line; an empty word where a pause separates two, and for each that is taken."""

    def __init__(self, line: Line, taken: Collection[int]) -> None:
        self.places: list[int] = []
        self.shown: list[str] = []  # taken ones too
        self.words: list[str] = []
        for at, text in enumerate(line.texts):
            if not line.joined[at]:
                self._add("", "", at)
            self._add("" if at in taken else text, text, at)
        self._add("", "", len(line.texts))
        self._add("", "", len(line.texts))

    def _add(self, word: str, text: str, place: int) -> None:
        self.words.append(word)
        self.shown.append(text)
        self.places.append(place)

    def items(self) -> Iterator[Item]:
        """Yield items in order."""
        at = 0
        while at < len(self.words):
            item = self._item(at) if self.words[at] else None
            if item is not None:
                yield item
            at = item.end if item is not None else at + 1

    def _item(self, at: int) -> Item | None:
        words, word = self.words, self.words[at]
        if word in _ZEROS:
            return Item(at, at + 1, "0", "zero")
        if word in _TIMES and (digit := DIGITS.get(words[at + 1]) or {"oh": "0", "o": "0"}.get(words[at + 1])):
            return Item(at, at + 2, digit * _TIMES[word], "digit")
        value, end = self._cardinal(at)
        if (ordinal := self._ordinal(at, value, end)) is not None:
            return ordinal
        if end == at:
            power = word == "hundred" or word in POWERS
            return Item(at, at + 1, "", "power") if power else None
        kind = "digit" if word in DIGITS and end == at + 1 else "pair" if value < 100 else "large"
        return Item(at, end, str(value), kind)

    def _ordinal(self, at: int, value: int, end: int) -> Item | None:
        """Return the ordinal at `at`, whose words before the last are a cardinal, or there are none."""
        words = self.words
        last = words[end + 1] if words[end] == "and" and value >= 100 else words[end]
        stop = end + (2 if last != words[end] else 1)
        if last not in _ORDINALS or (last == words[end] == "second" and self._is_duration(end)):
            return None
        if last in _ORDINAL_POWERS and end > at:
            words[end], power = last.removesuffix("th"), last
            total, stop = self._cardinal(at)
            words[end] = power
            if stop != end + 1 or total in (100, 1_000, 10**6):  # "one hundredth" is a part
                return None
        elif end == at or words[end - 1] in TENS or words[end - 1] == "hundred" or words[end - 1] in POWERS:
            if words[end - 1] in TENS and end > at and _ORDINALS[last] > 9:
                return None
            total = value + _ORDINALS[last]
        else:
            return None
        suffix = "th" if total % 100 in (11, 12, 13) else _SUFFIXES.get(total % 10, "th")
        return Item(at, stop, f"{total:,}{suffix}" if total >= LONG else f"{total}{suffix}", "ordinal")

    def _is_duration(self, at: int) -> bool:
        """Whether "second" at `at` is the unit of time after a number: "a thirty second timer"."""
        start = at
        while self.words[start - 1] in _PARTS:
            start -= 1
        after = self.shown[at + 1]
        return start < at and (
            after in _TIMED or not (self.shown[start - 1] in _ORDINAL_BEFORE or after in _ORDINAL_AFTER)
        )

    def _cardinal(self, at: int) -> tuple[int, int]:
        """Return the value of the longest cardinal at `at` and its end; the end is `at` if there is none."""
        if self.words[at] == "a" and not self._is_article_of_power(at):
            return 0, at
        total, limit, end = 0, 10**15, at
        while True:
            start = end + (self.words[end] == "and" and end > at)
            value, stop = self._hundreds(start)
            if stop == start:
                return total, end
            power = POWERS.get(self.words[stop])
            if power is None or power >= limit:
                follows = self.words[stop] == "hundred" or power is not None
                return (total, end) if value >= limit or (follows and end > at) else (total + value, stop)
            total, limit, end = total + value * power, power, stop + 1
            if self.words[end] == "and" and self._is_between(at):
                return total, end

    def _hundreds(self, at: int) -> tuple[int, int]:
        """Return the value of a number below 10,000 without "thousand", and its end."""
        value, end = (1, at + 1) if self.words[at] == "a" and self.words[at + 1] else self.two_digits(at)
        if end == at or self.words[end] != "hundred" or (self.words[at] == "zero"):
            return (value, end) if self.words[at] != "a" or self.words[end] in POWERS else (0, at)
        value, end = value * 100, end + 1
        start = end + (self.words[end] == "and")
        rest, stop = self.two_digits(start)
        if stop == start or rest == 0 or self.words[stop] == "hundred" or (start > end and self._is_between(at)):
            return value, end
        return value + rest, stop

    def two_digits(self, at: int) -> tuple[int, int]:
        """Return the value of a number below 100, and its end."""
        word, after = self.words[at], self.words[at + 1] if at + 1 < len(self.words) else ""
        if word in TENS and after in DIGITS and after != "zero":
            return int(TENS[word]) + int(DIGITS[after]), at + 2
        text = TENS.get(word) or TEENS.get(word) or DIGITS.get(word)
        return (int(text), at + 1) if text else (0, at)

    def _is_article_of_power(self, at: int) -> bool:
        before = self.shown[at - 1]
        of_part = before == "of" and self.shown[at - 2] in ("half", "quarter", "third", "tenth", "fraction")
        return (self.words[at + 1] == "hundred" or self.words[at + 1] in POWERS) and not (before in _HALVED or of_part)

    def _is_between(self, at: int) -> bool:
        return self.shown[at - 1] == "between"
