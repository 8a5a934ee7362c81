"""Numbers as people write them: money, percentages, times, dates, addresses, telephone and account numbers. Pure.

`numerals` finds numbers; this module finds what is said around them. English, and Mandarin by `chinese_numerals`.
`tests/server/text/written_forms.tsv` lists utterances with their written forms. Why these are rules:
docs/decisions/decoding.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from model.ctc.words import Word
from model.text.letters import has_ideographs
from server.text.calendar import times_and_dates, two_digits
from server.text.chinese_numerals import chinese_numbers
from server.text.internet import addresses
from server.text.line import Line, Span, whole_words
from server.text.numerals import numbers, together
from server.text.spoken_digits import DIGITS, ORDINALS, TEENS, TENS

_CURRENCIES = {
    "dollar": "$", "dollars": "$", "euro": "€", "euros": "€", "pound": "£", "pounds": "£",
}  # fmt: skip
_CENTS = {"$": {"cent", "cents"}, "€": {"cent", "cents"}, "£": {"pence", "p"}}
_ENDS_AMOUNT = {"", "a", "and", "at", "each", "for", "in", "is", "on", "per", "please", "plus", "to", "was"}
_PARTS = {"half": ".5", "quarter": ".25"}
_POWERS = {"million", "billion", "trillion"}
_PHONE = {
    "call", "cell", "dial", "fax", "landline", "mobile", "number", "phone", "reach", "ring", "telephone", "text",
    "whatsapp",
}  # fmt: skip
_NO_PHONE = {
    "account", "card", "claim", "code", "confirmation", "customer", "id", "invoice", "member", "membership", "order",
    "pin", "policy", "reference", "routing", "serial", "ticket", "tracking", "zip",
}  # fmt: skip
_NEAR = 6  # words before a number that may say what it is
_LETTERED = {
    "apartment", "apt", "block", "building", "flat", "floor", "gate", "level", "room", "row", "seat", "section",
    "suite", "unit",
}  # fmt: skip
_UNITS = "|".join(name for name in DIGITS if name != "zero")
_DIGIT = rf"(?:{'|'.join(DIGITS)}|oh|o)"
_TENS = rf"(?:(?:{'|'.join(TENS)})(?: (?:{_UNITS}))?|{'|'.join(TEENS)})"
_STREETS = (
    "street|avenue|road|lane|drive|boulevard|court|place|way|parkway|highway|circle|terrace|square|trail|broadway"
)
_ORDINAL = "|".join(ORDINALS)
_HOUSE = whole_words(
    rf"(?P<first>{_TENS}|{_UNITS}) (?P<second>{_TENS}|(?:oh|o) (?:{_UNITS}))(?: (?P<letter>[a-h]))?"
    rf"(?= (?:(?!{_ORDINAL})[a-z']+ ){{1,2}}(?:{_STREETS})(?!\S))"
)
_PAIRS = whole_words(
    r"(?:bus|code|extension|flight|highway|locker|passcode|pin|room|route|suite|train)(?: is| number)? "
    rf"(?P<first>{_TENS}|{_UNITS}) (?P<second>{_TENS})"
)
_TOLL_FREE = whole_words(rf"(?:(?P<one>one) )?eight hundred (?P<rest>{_DIGIT}(?: {_DIGIT}){{6}})")
_MEASURES = "inch|foot|yard|mile|cup|teaspoon|tablespoon|ounce|pound|gallon|pint|acre|meter|metre|kilometer|kilometre"
_DENOMINATORS = {"halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "eighth": 8, "sixteenth": 16}
_FRACTION = whole_words(
    rf"(?P<over>{_UNITS}|eleven|thirteen|fifteen) (?P<under>halves|(?:third|quarter|fourth|fifth|eighth|sixteenth)s?)"
    rf"(?= of an? (?:{_MEASURES})(?!\S))"
)
_CODE = whole_words(rf"(?:{_DIGIT}|[a-z])(?: (?:{_DIGIT}|[a-z])){{2,}}")


def written_forms(words: Sequence[Word], *, english: bool = True) -> list[Span]:
    """Return the words to write otherwise than they were said, in order, without overlap."""
    if not english and any(has_ideographs(word.text) for word in words):
        return chinese_numbers([word.text for word in words])
    line = Line(words)
    spans, taken = list[Span](), set[int]()
    for span in (*addresses(line, together), *_fixed(line), *times_and_dates(line), *_codes(line)):
        if taken.isdisjoint(range(span.start, span.end)):
            spans.append(span)
            taken.update(range(span.start, span.end))
    found = numbers(line, taken)
    return sorted((*spans, *_Surroundings(line, found.found, found.rows, taken).spans()), key=lambda span: span.start)


def _fixed(line: Line) -> Iterator[Span]:
    """Yield what a pattern finds alone: house numbers, extensions, toll-free numbers, fractions of a measure."""
    for start, end, match in line.matches(_HOUSE):
        letter = match["letter"] or ""
        yield Span(start, end, two_digits(match["first"]) + two_digits(match["second"]) + letter)
    for _, end, match in line.matches(_PAIRS):
        start = end - len(f"{match['first']} {match['second']}".split())
        yield Span(start, end, two_digits(match["first"]) + two_digits(match["second"]))
    for start, end, match in line.matches(_TOLL_FREE):
        rest = "".join(_digit(word) for word in match["rest"].split())
        yield Span(start, end, f"{'1-' if match['one'] else ''}800-{rest[:3]}-{rest[3:]}")
    for start, end, match in line.matches(_FRACTION):
        over, under = two_digits(match["over"]), match["under"].removesuffix("s")
        yield Span(start, end, f"{over}/{_DENOMINATORS[under]}")


def _codes(line: Line) -> Iterator[Span]:
    """Yield letters and digits that are spelled together: "x k four nine two"."""
    for start, end, match in line.matches(_CODE):
        spelled = match[0].split()
        letters = [word for word in spelled if len(word) == 1 and word != "o"]
        article = spelled[0] in ("a", "i") and len(letters) == 1
        if letters and len(spelled) - len(letters) > 1 and not article:
            yield Span(start, end, "".join(word if word in letters else _digit(word) for word in spelled))


def _digit(word: str) -> str:
    return DIGITS.get(word, "0")


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Numbers of a line with the words around them that are written as signs."""

    line: Line
    numbers: Sequence[Span]
    rows: frozenset[Span]  # those that were said digit by digit
    taken: set[int]

    def spans(self) -> Iterator[Span]:
        """Yield each number with what belongs to it."""
        found = sorted((*self.numbers, *self._small()), key=lambda number: number.start)
        by_start = {number.start: number for number in found}
        done = 0
        for number in found:
            if number.start < done:
                continue
            span = self._row(number, by_start) if number in self.rows else self._amount(number, by_start, done)
            done = span.end
            yield span

    def _small(self) -> Iterator[Span]:
        """Yield numbers that stay words elsewhere: "one dollar", "two and a half hours", "unit two b"."""
        covered = {at for number in self.numbers for at in range(number.start, number.end)} | self.taken
        for at, text in enumerate(self.line.texts):
            if text in DIGITS and at not in covered:
                number, after = Span(at, at + 1, DIGITS[text]), self.line.after(at + 1)
                weight = after.startswith("pound") and not self._has_pence(at + 2)
                amount = (after in _CURRENCIES and not weight) or after in ("percent", "cents")
                if amount or self._and_part(at + 1) or self._lettered(number) is not number:
                    yield number

    # Rows of digits

    def _row(self, row: Span, by_start: dict[int, Span]) -> Span:
        line = self.line
        while line.after(row.end) in ("dash", "hyphen"):
            rest = by_start.get(row.end + 1)
            word = line.after(row.end + 1)
            if rest is not None:
                row = Span(row.start, rest.end, f"{row.text}-{rest.text}")
            elif word in DIGITS:
                row = Span(row.start, row.end + 2, f"{row.text}-{DIGITS[word]}")
            else:
                break
        if line.before(row.start) == "plus" and len(row.text) > 7:
            return Span(row.start - 1, row.end, f"+{row.text}")
        near = line.texts[max(0, row.start - _NEAR) : row.start]
        if _PHONE.isdisjoint(near) or not _NO_PHONE.isdisjoint(near):
            return self._lettered(row)
        return replace(row, text=_telephone(row.text))

    def _lettered(self, number: Span) -> Span:
        letter = self.line.after(number.end)
        if len(letter) == 1 and letter.isalpha() and self.line.before(number.start) in _LETTERED:
            return Span(number.start, number.end + 1, number.text + letter)
        return number

    # Amounts

    def _amount(self, number: Span, by_start: dict[int, Span], done: int) -> Span:
        line = self.line
        number = self._with_part(self._lettered(number))
        if line.after(number.end) in _POWERS:
            number = Span(number.start, number.end + 1, f"{number.text} {line.texts[number.end]}")
        after = line.after(number.end)
        if after == "percent":
            return self._signed(Span(number.start, number.end + 1, f"{number.text}%"), done)
        if after == "per" and line.after(number.end + 1) == "cent":
            return self._signed(Span(number.start, number.end + 2, f"{number.text}%"), done)
        if after in _CURRENCIES:
            return self._money(number, _CURRENCIES[after], by_start)
        one = line.before(number.start)
        after_one = one in ("dollar", "pound", "euro") and line.before(number.start - 1) == "a"
        if after_one and number.start - 2 >= done and self._is_cents(number):
            return Span(number.start - 2, number.end, f"{_CURRENCIES[one]}1.{number.text}")
        return self._signed(number, done)

    def _signed(self, number: Span, done: int) -> Span:
        if self.line.before(number.start) in ("minus", "negative") and number.start > done and number.text[0].isdigit():
            return Span(number.start - 1, number.end, f"-{number.text}")
        return number

    def _and_part(self, at: int) -> bool:
        first, second, third = (self.line.after(place) for place in (at, at + 1, at + 2))
        return first == "and" and ((second == "a" and third in _PARTS) or (second, third) == ("three", "quarters"))

    def _with_part(self, number: Span) -> Span:
        """Return a number with "and a half" and so on."""
        if not self._and_part(number.end) or not number.text.isdecimal():
            return number
        part = self.line.texts[number.end + 2]
        return Span(number.start, number.end + 3, number.text + _PARTS.get(part, " 3/4"))

    def _money(self, number: Span, sign: str, by_start: dict[int, Span]) -> Span:
        line, end, text = self.line, number.end + 1, number.text
        if text.isdecimal():
            text = f"{int(text):,}"
        cents_at = end + (line.after(end) == "and")
        cents = by_start.get(cents_at)
        if cents is None and line.after(cents_at) in DIGITS:
            cents = Span(cents_at, cents_at + 1, DIGITS[line.texts[cents_at]])
        if cents is not None and "." not in text and cents.text.isdecimal() and len(cents.text) <= 2:
            named = line.after(cents.end) in _CENTS[sign]
            if named or (cents_at == end and self._is_cents(cents)):
                return Span(number.start, cents.end + named, f"{sign}{text}.{cents.text.zfill(2)}")
        if sign == "£":  # a pound is also a weight
            return number
        return Span(number.start, end, sign + text)

    def _has_pence(self, at: int) -> bool:
        return any(text in _CENTS["£"] for text in self.line.texts[at : at + 3])

    def _is_cents(self, number: Span) -> bool:
        """Whether a number after an amount can only be its cents."""
        return len(number.text) == 2 and number.text.isdecimal() and self.line.after(number.end) in _ENDS_AMOUNT


def _telephone(digits: str) -> str:
    """Return a North American number with dashes; others as they are."""
    if len(digits) == 10 and digits[0] not in "01":
        return f"{digits[:3]}-{digits[3:6]}-{digits[6:]}"
    if len(digits) == 11 and digits[0] == "1":
        return f"1-{_telephone(digits[1:])}"
    return f"{digits[:3]}-{digits[3:]}" if len(digits) == 7 and digits[0] not in "01" else digits
