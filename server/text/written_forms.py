"""Numbers as people write them: money, percentages, times, dates, addresses, telephone and account numbers. Pure.

`numerals` finds numbers; this module finds what is said around them. English, and Mandarin by `chinese_numerals`.
`tests/server/text/written_forms_en.tsv` and `written_forms_zh.tsv` list utterances with their written forms. Why these
are rules: docs/decisions/decoding.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from model.ctc.words import Word
from model.text.letters import has_ideographs
from server.text.internet import addresses
from server.text.line import PAUSE_S, Line, Span, whole_words
from server.text.numbers.calendar import MONTHS, times_and_dates, two_digits
from server.text.numbers.chinese_numerals import chinese_numbers
from server.text.numbers.numerals import SMALL, numbers, together
from server.text.numbers.spoken_digits import DIGITS, ORDINALS, TEENS, TENS, digits_of

_CURRENCIES = {
    "dollar": "$", "dollars": "$", "euro": "€", "euros": "€", "pound": "£", "pounds": "£", "yen": "¥", "rupee": "₹",
    "rupees": "₹",
}  # fmt: skip
_CENTS = {"$": {"cent", "cents"}, "€": {"cent", "cents"}, "£": {"pence", "p"}, "¥": set[str](), "₹": {"paise"}}
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
_ARTICLES = {"a", "i"}
_SPELLED = _NO_PHONE | {"plate", "license", "registration", "room", "seat", "spell", "spelled"}
_NUMBER_WORDS = {*DIGITS, *TEENS, *TENS, "hundred", "thousand", *_POWERS}
_BEFORE_PART = _NUMBER_WORDS | ORDINALS.keys() - {"second"} | {"point", "dot", "slash", "dash", "hyphen", "oh"}
_AFTER_PART = _NUMBER_WORDS | {"point", "oh", "o"}
_LINKS = {"to", "by", "in", "of", "over", "through", "or", "times", "plus", "minus"}
_DETERMINERS = {"a", "any", "each", "every", "first", "last", "one", "some", "starting", "that", "the", "this", "which"}
_PRONOUN_AFTER = {
    "a", "an", "another", "any", "each", "every", "last", "next", "no", "only", "other", "some", "that", "the", "this",
    "which",
}  # fmt: skip
_DASHES = {"/", "-"}
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
    rf"(?P<first>{_TENS}|{_UNITS}) (?P<second>{_TENS}|(?:oh|o) (?:{_UNITS}))(?: (?P<letter>[a-h])(?! m(?!\S)))?"
    rf"(?= (?:(?!(?:{_ORDINAL}|{_TENS}|{_DIGIT}|[ap] m)(?!\S))[a-z']+ ){{1,2}}(?:{_STREETS})(?!\S))"
)
_TOLL_FREE = whole_words(rf"(?:(?P<one>one) )?eight hundred (?P<rest>{_DIGIT}(?: {_DIGIT}){{6}})")
_MEASURES = "inch|foot|yard|mile|cup|teaspoon|tablespoon|ounce|pound|gallon|pint|acre|meter|metre|kilometer|kilometre"
_DENOMINATORS = {"halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "eighth": 8, "sixteenth": 16}
_FRACTION = whole_words(
    rf"(?P<over>{_UNITS}|eleven|thirteen|fifteen) (?P<under>halves|(?:third|quarter|fourth|fifth|eighth|sixteenth)s?)"
    rf"(?= of an? (?:{_MEASURES})(?!\S))"
)
_ALWAYS = whole_words("twenty four seven")
_RADIO = whole_words(rf"point {_DIGIT} (?P<band>[fa] m)")
_CODE = whole_words(rf"(?:{_DIGIT}|[a-z])(?: (?:{_DIGIT}|[a-z])){{2,}}")
AS_IN = re.compile(r"\b([a-z]) (?:as in (?:x ray|[a-z']+)|(?:for|like) \1[a-z']*(?: ray)?|(?<=x )ray)")
"""A letter with a word that begins with it: "b as in bravo", "b for bravo"."""
_SIGNS = {"dash": "-", "hyphen": "-", "slash": "/", "dot": ".", "underscore": "_"}
TIMES = {"double": 2, "triple": 3}


@dataclass(frozen=True, slots=True)
class Speech:
    """How words were spoken: the pause that separates two numbers, and whether they continue one."""

    pause_s: float = PAUSE_S
    continues: bool = False


FLUENT = Speech()


def written_forms(words: Sequence[Word], *, english: bool = True, speech: Speech = FLUENT) -> list[Span]:
    """Return the words to write otherwise than they were said, in order, without overlap."""
    if not english and any(has_ideographs(word.text) for word in words):
        return chinese_numbers([word.text for word in words])
    line = Line(words, speech.pause_s)
    spans, taken = list[Span](), set[int]()
    patterns = (*_fixed(line), *times_and_dates(line), *_codes(line))
    for span in (*addresses(line, together), *(span for span in patterns if not _cuts_number(line, span))):
        if taken.isdisjoint(range(span.start, span.end)):
            spans.append(span)
            taken.update(range(span.start, span.end))
    surroundings = _Surroundings(line, numbers(line, taken), taken, continues=speech.continues)
    return sorted((*spans, *surroundings.spans()), key=lambda span: span.start)


def _cuts_number(line: Line, span: Span) -> bool:
    """Whether a pattern begins or ends within a longer number: "ninety seven forty eight fifty in the morning"."""
    first, last = line.texts[span.start], line.texts[span.end - 1]
    begins = first in _AFTER_PART and line.before(span.start) in _BEFORE_PART
    ends = last in _NUMBER_WORDS and line.after(span.end) in _AFTER_PART
    return begins or (ends and ":" in span.text) or (ends and line.before(span.start) not in MONTHS)


def _fixed(line: Line) -> Iterator[Span]:
    """Yield what a pattern finds alone: house numbers, extensions, toll-free numbers, fractions of a measure."""
    for start, end, match in line.matches(_HOUSE):
        letter = match["letter"] or ""
        yield Span(start, end, two_digits(match["first"]) + two_digits(match["second"]) + letter)
    for start, end, match in line.matches(_TOLL_FREE):
        rest = "".join(_digit(word) for word in match["rest"].split())
        yield Span(start, end, f"{'1-' if match['one'] else ''}800-{rest[:3]}-{rest[3:]}")
    for start, end, _ in line.matches(_ALWAYS):
        if line.before(start) not in _NUMBER_WORDS and line.after(end) not in _NUMBER_WORDS | {"dot", "point", "oh"}:
            yield Span(start, end, "24/7")
    for _, end, match in line.matches(_RADIO):
        yield Span(end - 2, end, match["band"].replace(" ", ""))
    for start, end, match in line.matches(_FRACTION):
        over, under = two_digits(match["over"]), match["under"].removesuffix("s")
        yield Span(start, end, f"{over}/{_DENOMINATORS[under]}")


def _codes(line: Line) -> Iterator[Span]:
    """Yield letters and digits that are spelled together: "x k four nine two"; no article is one of the letters."""
    for start, end, match in line.matches(_CODE):
        spelled = match[0].split()
        letters = sum(map(_is_letter, spelled))
        named = not _SPELLED.isdisjoint(line.texts[max(0, start - 3) : start])
        article = (
            spelled[0] in _ARTICLES and letters < 3 and len(spelled[1]) > 1 and not named
        )  # "a four oh one k plan"
        tail = spelled[-1] in _ARTICLES and bool(line.after(end))  # "four oh nine a day"
        spelled = spelled[article : len(spelled) - tail]
        letters -= article + tail
        if letters and len(spelled) - letters > 1:
            yield Span(start + article, end - tail, "".join(w if _is_letter(w) else _digit(w) for w in spelled))


def _is_letter(word: str) -> bool:
    return len(word) == 1 and word != "o"


def _digit(word: str) -> str:
    return DIGITS.get(word, "0")


def spelled_code(texts: Sequence[str]) -> str:
    """Return words of the grammar `alphanumeric` as one code: "b as in bravo double two" and "bravo two two" are B22.

    A word with other signs than letters, such as a masked number, stays as it is.
    """
    said, times = list[str](), 1
    for word in AS_IN.sub(lambda match: match[1], " ".join(texts)).split():
        said += [word] * (0 if word in TIMES else times)
        times = TIMES.get(word, 1)
    groups = groupby(said, key=lambda word: word in _NUMBER_WORDS or word == "oh")
    return "".join(digits_of(list(group)) if digits else "".join(map(_sign, group)) for digits, group in groups)


def _sign(word: str) -> str:
    return _SIGNS.get(word) or (word[0].upper() if word.isalpha() else word)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Numbers of a line with the words around them that are written as signs."""

    line: Line
    numbers: Sequence[Span]
    taken: set[int]
    continues: bool = False  # a number: small ones are digits too

    def spans(self) -> Iterator[Span]:
        """Yield each number with what belongs to it; small ones only next to something that is written in digits."""
        by_start = {number.start: number for number in self.numbers}
        certain = {number for number in self.numbers if not self._is_small(number) or self._has_unit(number, by_start)}
        digits = self.taken.union(*(range(number.start, number.end) for number in certain))
        written = [number for number in self.numbers if number in certain or self._is_linked(number, digits)]
        by_start = {number.start: number for number in written}
        done = 0
        for number in written:
            if number.start >= done:
                span = self._written(number, by_start, done)
                done = span.end
                yield span

    def _is_small(self, number: Span) -> bool:
        alone = number.end == number.start + 1 and number.text.isdecimal() and int(number.text) < SMALL
        before, after = self.line.before(number.start), self.line.after(number.end)
        return alone and not self.continues and not any(word in _NUMBER_WORDS for word in (before, after))

    def _has_unit(self, number: Span, by_start: dict[int, Span]) -> bool:
        """Whether a small number is written for what follows: "one dollar", "two and a half hours", "unit two b"."""
        after = self.line.after(number.end)
        pence = any(text in _CENTS["£"] for text in self.line.texts[number.end + 1 : number.end + 5])
        weight = after.startswith("pound") and not pence
        weight = weight and not ((cents := by_start.get(number.end + 1)) and self._is_cents(cents))
        amount = (after in _CURRENCIES and not weight) or after in ("percent", "cents")
        return amount or self._and_part(number.end) or self._lettered(number) is not number

    def _is_linked(self, number: Span, digits: set[int]) -> bool:
        """Whether a small number and one in digits are two ends of a range or a ratio: "from two to four"."""
        line = self.line
        if line.before(number.start) in _PRONOUN_AFTER:  # "the one in ten"
            return False
        after, before = line.after(number.end), line.before(number.start)
        of = after == "out" and line.after(number.end + 1) == "of"
        if (after in _LINKS and number.end + 1 in digits) or (of and number.end + 2 in digits):
            return True
        between = after == "and" and before == "between" and number.end + 1 in digits
        ends = before in _LINKS or (before == "and" and line.before(number.start - 2) == "between")
        return between or (ends and number.start - 2 in digits and before != "in")

    def _written(self, number: Span, by_start: dict[int, Span], done: int) -> Span:
        line = self.line
        if number.text.isdecimal():
            if line.before(number.start) == "plus" and len(number.text) > 7 and number.start > done:
                return Span(number.start - 1, number.end, f"+{number.text}")
            near = line.texts[max(0, number.start - _NEAR) : number.start]
            if not _PHONE.isdisjoint(near) and _NO_PHONE.isdisjoint(near):
                number = replace(number, text=_telephone(number.text))
        return self._amount(number, by_start, done)

    def _lettered(self, number: Span) -> Span:
        letter = self.line.after(number.end)
        article = letter in ("a", "i") and self.line.after(number.end + 1)
        if len(letter) == 1 and letter.isalpha() and not article and self.line.before(number.start) in _LETTERED:
            return Span(number.start, number.end + 1, number.text + letter)
        return number

    # Amounts

    def _amount(self, number: Span, by_start: dict[int, Span], done: int) -> Span:
        line = self.line
        if number.text.endswith(("st", "nd", "rd", "th")) or not _DASHES.isdisjoint(number.text):
            return number
        number = self._with_part(self._lettered(number))
        if line.after(number.end) in _POWERS:
            number = Span(number.start, number.end + 1, f"{number.text} {line.texts[number.end]}")
        after = line.after(number.end)
        signed = (after == "percent") or 2 * (after == "per" and line.after(number.end + 1) == "cent")
        if signed and self._is_fraction(number.start, done):
            return Span(number.start - 1, number.end + signed, f"0.{number.text}%")
        if signed:
            return self._signed(Span(number.start, number.end + signed, f"{number.text}%"), done)
        if after in _CURRENCIES:
            return self._money(number, _CURRENCIES[after], by_start)
        one = line.before(number.start)
        after_one = one in ("dollar", "pound", "euro") and line.before(number.start - 1) == "a"
        if after_one and number.start - 2 >= done and self._is_cents(number):
            return Span(number.start - 2, number.end, f"{_CURRENCIES[one]}1.{number.text}")
        return self._signed(number, done)

    def _is_fraction(self, start: int, done: int) -> bool:
        """Whether a number follows a point without a whole number: "point five percent", not "at this point"."""
        return self.line.before(start) == "point" and start > done and self.line.before(start - 1) not in _DETERMINERS

    def _signed(self, number: Span, done: int) -> Span:
        line = self.line
        sign = line.before(number.start) in ("minus", "negative") and number.start > done and number.text[0].isdigit()
        if sign and line.before(number.start - 1) not in _NUMBER_WORDS | {"or"}:  # "ten minus five" has two numbers
            return Span(number.start - 1, number.end, f"-{number.text}")
        return number

    def _and_part(self, at: int) -> bool:
        first, second, third = (self.line.after(index) for index in (at, at + 1, at + 2))
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
