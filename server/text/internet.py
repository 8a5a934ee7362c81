"""E-mail and web addresses as they are dictated: "john dot smith at gmail dot com". Pure, English only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from server.text.line import Line, Span, whole_words
from server.text.numbers.spoken_digits import DIGITS, TEENS, TENS

_DOMAINS = "com|org|net|edu|gov|info|biz|io|dev|app|ai|co|me|tv|us|uk|de|fr|es|it|nl|ch|at|eu|ca|au|nz|ie|in|jp|cn"
_COUNTRIES = [" ".join(domain) for domain in _DOMAINS.split("|") if len(domain) == 2]  # spelled: "u k"
_SPELLED = "|".join(_COUNTRIES)
_SPELLED_ALONE = "|".join(country for country in _COUNTRIES if country[0] not in "ai")  # "the red dot i saw"
_NUMBERS = frozenset({*DIGITS, *TEENS, *TENS})
_NUMBER = "|".join(sorted(_NUMBERS))
_JOINERS = {
    "dot": ".", "period": ".", "underscore": "_", "dash": "-", "hyphen": "-", "plus": "+", "slash": "/", "colon": ":",
}  # fmt: skip
_NO_NAME = {  # words before "at" or "dot" that are not a part of an address: "look at example dot com"
    "a", "an", "and", "are", "at", "available", "by", "check", "dot", "find", "found", "from", "go", "here", "him",
    "her", "in", "is", "it", "look", "looking", "me", "of", "on", "online", "or", "out", "page", "reach", "see", "site",
    "that", "the", "them", "there", "this", "to", "up", "us", "visit", "was", "website", "you",
}  # fmt: skip
_WORD = rf"(?:(?!(?:at|{'|'.join(_JOINERS)}) )[a-z']+)"
_PIECE = rf"(?:(?:(?:[a-z] )+[a-z](?![a-z])|{_WORD})(?: (?:{_NUMBER})\b){{0,16}})"
_HOST = (
    rf"{_PIECE}(?: (?:dash|hyphen) {_PIECE}){{0,8}}(?: dot {_PIECE}){{0,8}}?"
    rf" dot (?:{_DOMAINS}|{_SPELLED_ALONE})(?: dot (?:{_DOMAINS}|{_SPELLED}))?(?!\S)"
)
_PATH = rf"(?:(?: forward)? slash(?: {_PIECE})?)*"
_SCHEME = r"(?:(?:https?|h t t p(?: s)?) colon (?:forward )?slash (?:forward )?slash )?"
_USER = rf"{_PIECE}(?: (?:dot|period|underscore|dash|hyphen|plus) {_PIECE}){{0,8}}"
_EMAIL = whole_words(rf"(?P<user>{_USER}) at (?:{_HOST})")
_WEB = whole_words(rf"{_SCHEME}{_HOST}{_PATH}")
Digits = Callable[[Sequence[str]], str]


def addresses(line: Line, digits: Digits) -> Iterator[Span]:
    """Yield e-mail and web addresses in order, without overlap; `digits` writes number words as digits."""
    if "dot" not in line.texts:
        return
    done = 0
    for start, end, match in line.matches(_EMAIL):
        if match["user"] not in _NO_NAME:
            yield from _webs(line, done, start, digits)
            yield Span(start, end, _written(match[0].replace("forward slash", "slash").split(), digits))
            done = end
    yield from _webs(line, done, len(line.texts), digits)


def _webs(line: Line, begin: int, limit: int, digits: Digits) -> Iterator[Span]:
    for start, end, match in line.matches(_WEB):
        if begin <= start and end <= limit and match[0].split()[0] not in _NO_NAME:
            yield Span(start, end, _written(match[0].replace("forward slash", "slash").split(), digits))


def _written(words: Sequence[str], digits: Digits) -> str:
    """Return an address without spaces: its signs, names, spelled names and numbers."""
    parts: list[str] = []
    numbers: list[str] = []
    for word in (*words, ""):
        if word in _NUMBERS:
            numbers.append(word)
            continue
        if numbers:
            parts.append(digits(numbers) or "".join(numbers))
            numbers = []
        parts.append("@" if word == "at" else _JOINERS.get(word, word))
    return re.sub(r"'", "", "".join(parts))
