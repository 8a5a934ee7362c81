"""Digits of spoken and written numbers, word by word: "four", "oh", "double five", "forty seven", "4719". Pure.

English only. Unlike `server.text.written_forms`, which converts only what is surely a number, this module finds every
word that may carry a digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache

DIGITS = {
    "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
    "nine": "9",
}  # fmt: skip
TEENS = {
    "ten": "10", "eleven": "11", "twelve": "12", "thirteen": "13", "fourteen": "14", "fifteen": "15", "sixteen": "16",
    "seventeen": "17", "eighteen": "18", "nineteen": "19",
}  # fmt: skip
_UNITS = DIGITS | {
    "nought": "0", "naught": "0", "niner": "9", "zeros": "0", "zeroes": "0", "twos": "2", "threes": "3", "fours": "4",
    "fives": "5", "sixes": "6", "sevens": "7", "eights": "8", "nines": "9",
}  # fmt: skip
TENS = {
    "twenty": "20", "thirty": "30", "forty": "40", "fourty": "40", "fifty": "50", "sixty": "60", "seventy": "70",
    "eighty": "80", "ninety": "90",
}  # fmt: skip
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}  # zeros that words may replace
_LARGE_POWERS = {"million", "billion", "trillion"}  # no number of digits is read with them
_LETTERS = {"oh": "0", "o": "0"}  # digits only among digits; elsewhere an interjection
ORDINALS = {
    "first": "1", "second": "2", "third": "3", "fourth": "4", "fifth": "5", "sixth": "6", "seventh": "7",
    "eighth": "8", "ninth": "9", "tenth": "10", "eleventh": "11", "twelfth": "12", "thirteenth": "13",
    "fourteenth": "14", "fifteenth": "15", "sixteenth": "16", "seventeenth": "17", "eighteenth": "18",
    "nineteenth": "19", "twentieth": "20", "thirtieth": "30", "fortieth": "40", "fiftieth": "50", "sixtieth": "60",
    "seventieth": "70", "eightieth": "80", "ninetieth": "90", "hundredth": "100", "thousandth": "1000",
    "millionth": "1000000", "twenties": "20", "thirties": "30", "forties": "40", "fifties": "50", "sixties": "60",
    "seventies": "70", "eighties": "80", "nineties": "90",
}  # fmt: skip
_ROUGH = {
    "dozen": "12", "dozens": "12", "half": "5", "quarter": "25", "quarters": "25", "thrice": "3", "twice": "2",
    "hundreds": "100", "thousands": "1000", "millions": "1000000", "billions": "1000000000",
}  # fmt: skip
"""Numbers like ordinals: where every digit counts, or inside a number."""
_FRACTIONS = {"half", "quarter", "quarters"}  # also numbers before "a million"
_BEFORE_LARGE = {"a", "of", *_LARGE_POWERS}

_TIMES = {"double": 2, "triple": 3, "treble": 3, "quadruple": 4}
_PRONOUN_AFTER = {
    "a", "an", "another", "any", "each", "every", "good", "last", "new", "next", "no", "old", "only", "other", "right",
    "same", "some", "that", "the", "this", "which", "wrong",
}  # fmt: skip
_LINKS = {
    "actually", "again", "ah", "and", "ate", "comma", "dash", "dot", "er", "erm", "fore", "for", "hm", "hmm", "hyphen",
    "is", "it", "it's", "let", "like", "me", "mhm", "minus", "no", "number", "of", "okay", "ok", "point", "please",
    "right", "see", "slash", "so", "sorry", "space", "that", "that's", "the", "then", "to", "too", "tree", "uh", "um",
    "wait", "well", "won", "yeah", "yep", "yes",
}  # fmt: skip
"""Words that do not end a number that is said in parts; "for", "to" and "ate" may be digits that were misheard."""

_AFTER_AMOUNTS = {
    "bucks", "cent", "cents", "day", "days", "degrees", "dollar", "dollars", "euro", "euros", "feet", "hour", "hours",
    "inches", "kids", "kilometers", "kilos", "meters", "mile", "miles", "minute", "minutes", "month",
    "months", "pence", "people", "per", "percent", "persons", "pounds", "times", "week", "weeks",
    "year", "years",
}  # fmt: skip
_CURRENCIES = ("$", "€", "£", "¥")  # of amounts that a model writes in digits
_NO_DIGITS = {("one", "moment"), ("one", "more"), ("one", "thing")}
_CLOCK = {("a", "m"), ("am",), ("o'clock",), ("p", "m"), ("pm",)}
_TIME_WORDS = 3  # of "eleven forty five"

_ALIKE = {"ate", "fore", "for", "to", "too", "tree", "won"}

_PLAIN = {**_UNITS, **TEENS, **TENS, **dict.fromkeys(_POWERS, "")}
_MARKS = ".,;:?!\"'()[]…-–—"
_KNOWN = (*_PLAIN, *_LETTERS, *ORDINALS, *_ROUGH)
_BEGINNINGS = frozenset(word[:length] for word in _KNOWN for length in range(1, len(word))) - {"to"}


class Part(Enum):
    """What a word is to the number at its place."""

    NUMBER = auto()
    LINK = auto()  # neither belongs to a number nor ends one
    OTHER = auto()


_ALWAYS = dict.fromkeys(_PLAIN.keys() - {"one"}, Part.NUMBER)
_SOMETIMES = {"one", "a"}.union(_LETTERS, _TIMES, ORDINALS, _LINKS, _ROUGH)
"""Words that are the same part anywhere, and those that depend on the words around them or on options."""


@lru_cache(4096)
def plain(text: str) -> str:
    """Return a word without its capitals and the marks around it."""
    return text.strip(_MARKS).casefold()


def may_become_number(text: str) -> bool:
    """Whether an unfinished word may be the beginning of a number word: "thre"."""
    word = plain(text)
    return word in _BEGINNINGS and not _carries_digits(word)


def parts(texts: Sequence[str], *, in_number: bool, ordinals: bool, wary: bool = False) -> list[Part]:
    """Return the part of each word, given as `plain` returns it.

    `in_number`: a number is unfinished at the start. `ordinals`: "fifth" is a number also where none precedes it.
    `wary`: the last word is a number if a number can begin with it, as "oh" and the pronoun "one".
    """
    sequence: list[Part] = []
    for at, text in enumerate(texts):
        known = _ALWAYS.get(text) or (Part.OTHER if text not in _SOMETIMES and text.isalpha() else None)
        if known is not None:  # in redaction every interim result comes here
            sequence.append(known)
            in_number = known is Part.NUMBER
            continue
        following = texts[at + 1] if at + 1 < len(texts) else "zero" if wary else ""
        sequence.append(part(text, texts[at - 1] if at else "", following, in_number=in_number, ordinals=ordinals))
        in_number = sequence[-1] is Part.NUMBER or (in_number and sequence[-1] is Part.LINK)
    return sequence


def part(text: str, before: str, following: str, *, in_number: bool, ordinals: bool) -> Part:
    """Return the part of one word between two others, empty at an end."""
    if _is_number(text, following, before, in_number=in_number, ordinals=ordinals):
        return Part.NUMBER
    if text == "a":  # of "half a million", "one and a half"
        inside = in_number and (before in _FRACTIONS or before == "of" or following in _FRACTIONS)
        return Part.LINK if inside else Part.OTHER
    return Part.LINK if text in _LINKS else Part.OTHER


def _is_number(text: str, following: str, before: str, *, in_number: bool, ordinals: bool) -> bool:
    if text == "one":
        alone = not in_number and before in _PRONOUN_AFTER
        return not alone or _carries_digits(following)
    if text in _FRACTIONS and (following in _BEFORE_LARGE or _carries_digits(following)):
        return True
    if text in ORDINALS or text in _ROUGH:
        return ordinals or in_number
    if text in _LETTERS or text in _TIMES:
        return in_number or _carries_digits(following)
    return _carries_digits(text)


def _carries_digits(text: str) -> bool:
    if text in _PLAIN or text in _LETTERS:
        return True
    if text.isalpha():
        return False
    if any(map(str.isdigit, text)):
        return True
    return "-" in text and any(piece in _PLAIN for piece in text.split("-"))


def sounds_like_digit(text: str) -> bool:
    """Whether a word, given as `plain` returns it, is often a misheard digit: "for", "to"."""
    return text in _ALIKE


def read_singly(texts: Sequence[str]) -> bool:
    """Whether number words are digits one by one, as amounts and years are not: "four double one", "4719"."""
    return all(text in _UNITS or text in _LETTERS or text in _TIMES or text.isdecimal() for text in texts)


def is_amount(texts: Sequence[str], following: Sequence[str], before: str = "") -> bool:
    """Whether number words, between others, are an amount or a time, and not digits that are read out."""
    pieces = _pieces(texts)
    if all(text.startswith(_CURRENCIES) for text in texts):
        return True
    if pieces[-1] in _LARGE_POWERS or (before, *pieces) == ("last", "four") or (*pieces, *following[:1]) in _NO_DIGITS:
        return True
    if tuple(following[:1]) in _CLOCK or tuple(following[:2]) in _CLOCK:
        return len(pieces) == 1 or (len(pieces) <= _TIME_WORDS and pieces[1] not in DIGITS)
    return bool(following) and following[0] in _AFTER_AMOUNTS and _cardinal(pieces) is not None


def counts_digits(texts: Sequence[str], following: Sequence[str]) -> bool:
    """Whether this says how many digits there are: "three digit code"."""
    return bool(following) and following[0] in ("digit", "digits") and _cardinal(_pieces(texts)) is not None


def _pieces(texts: Sequence[str]) -> list[str]:
    return [piece for word in texts for piece in word.split("-")]


def _cardinal(pieces: Sequence[str]) -> int | None:
    """Return the value of number words such as "four thousand five hundred"; None if they are no such number."""
    total = section = 0
    limit = 10 ** (max(_POWERS.values()) + 1)
    for piece in pieces:
        if piece == "hundred":
            if section >= 100:
                return None
            section = (section or 1) * 100
        elif piece in _POWERS:
            scale = 10 ** _POWERS[piece]
            if scale >= limit:
                return None
            total, section, limit = total + (section or 1) * scale, 0, scale
        else:
            digits = _UNITS.get(piece) or TEENS.get(piece) or TENS.get(piece) or piece
            if not digits.isdecimal() or digits == "0":
                return None
            free = 10 if len(digits) == 1 else 100 if len(digits) == 2 else section + 1
            if section % free or (len(digits) == 1 and section % 100 == 10):
                return None
            section += int(digits)
    return total + section


def digits_of(texts: Sequence[str]) -> str:
    """Return the digits of number words, given as `plain` returns them: "forty seven double one" is 4711."""
    digits: list[str] = []
    zeros, times, tens = 0, 1, False
    pieces = _pieces(texts)
    if not _POWERS.keys().isdisjoint(pieces) and (value := _cardinal(pieces)) is not None:
        return str(value)
    for text in pieces:
        if text in _TIMES:
            times = _TIMES[text]
            continue
        if text in _POWERS:
            zeros = _POWERS[text]
            continue
        piece = _digits_of_word(text) * times
        if tens and len(piece) == 1 and piece != "0":
            digits[-1] = digits[-1][:-1] + piece
        else:
            digits.append("0" * max(0, zeros - len(piece)) + piece)
        zeros, times, tens = 0, 1, text in TENS
    return "".join(digits) + "0" * zeros


def _digits_of_word(text: str) -> str:
    known = _PLAIN.get(text) or _LETTERS.get(text) or ORDINALS.get(text) or _ROUGH.get(text)
    return known if known is not None else "".join(filter(str.isdigit, text))
