"""Words that end inside a number, a code or a spelled name, after which the speaker probably continues. Pure.

English and Mandarin. A number that is read digit by digit is unfinished until it has the digits of its kind: those of a
telephone number unless a word before it names another. A spelled name or code may always go on. An amount, a time or a
single digit inside a sentence is finished: "twenty five", "at eight oh five", "this one".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from server.text.numbers.calendar import BEFORE_TIME
from server.text.numbers.spoken_digits import DIGITS, TEENS, TENS, digits_of, plain
from server.text.redaction_kinds import LONG, NumberLanguage
from server.text.written_forms import AS_IN, TIMES

WAIT_S = 1.5  # at most
_NEARLY_S = (0.0, 0.5, 1.0, 1.0)  # of a long number, by the digits that are missing: some may have been missed
LAST_WORDS = 40  # that are read: a card number, with the words before it

_LENGTHS = {
    "card": 16, "social": 9, "ssn": 9, "code": 6, "passcode": 6, "zip": 5, "postal": 5, "pin": 4, "extension": 4,
    "flight": 4, "room": 3, "apartment": 3, "suite": 3, "highway": 3, "gate": 2, "route": 2,
}  # fmt: skip
"""Digits of a number by the word before it that says what it is."""
_TELEPHONE = 10  # digits of any other. Source: the North American numbering plan
_OPENING = 2  # words before a number that may be one of its digits, if they begin the turn
_NEAR = 6  # words before a number that may say what it is
_BEGUN = re.compile(
    rf"\b(?:(?:{'|'.join(_LENGTHS)}|number|phone|cell|mobile|account|id|order|policy|reference)(?:'s| is)|area code"
    r"|spelled|[b-hj-z] as(?: in)?)(?: (?:uh|um|er|it's|plus))*$"
)
_TAILS = {"is", "code", "spelled", "as", "in", "plus", "ray"}  # last words of `_BEGUN` and `AS_IN`, except symbols
_SPELLING = {"in", "for", "like"}  # before the last word of `AS_IN`
_SINGLE = {*DIGITS, "oh", "o", "niner"}
_NUMBERS = {*_SINGLE, *TEENS, *TENS}
_PAUSING = {"dash", "hyphen", "dot", "slash", "underscore", "uh", "um", "er"}
_OPEN = {*_PAUSING, *TIMES}
"""Words inside a number or name, after which more follows."""
_AMONG = _PAUSING | {"and", "to", "too", "for", "fore", "ate", "won", "tree", "through"}
"""Words that are inside a number only between others; digits are misheard as some."""
_LINKS = {"or", "by", "from", "of", "plus", "minus", "times", "percent", "point"}
_ABBREVIATIONS = (
    "ok am pm tv us usa uk eu un ai it id pc cd dvd dj ac dc bc ad la ny nyc fbi cia bbc cnn ibm hr pr md gps usb api"
    " vip atm faq iq ceo cto suv nasa nba nfl"
)
_CHINESE_RUN = re.compile(r"[零〇一幺二两三四五六七八九]+$")
_CHINESE_BEGUN = re.compile(r"(?:号码?|电话|手机|密码|验证码)是$")
_CHINESE_LENGTHS = {"身份证": 18, "卡号": 16, "验证码": 6, "密码": 6}
_CHINESE_MOBILE = 11


def wait_s(texts: Sequence[str], language: NumberLanguage) -> float:
    """Return how much longer than after other words a turn that ends in these waits, at most `WAIT_S`."""
    if _is_over([plain(text) for text in texts[-3:]]):
        return 0.0
    last = [plain(text) for text in texts[-LAST_WORDS:]]
    text = " ".join(last).replace("-", " ")
    if language is NumberLanguage.CHINESE and not text.isascii():
        return _chinese_wait_s("".join(last))
    return WAIT_S if _BEGUN.search(text) else _wait_s(AS_IN.sub(lambda match: match[1].upper(), text).split())


def _is_over(words: Sequence[str]) -> bool:
    """Whether the last three words alone show that the others need not be read, as nearly always."""
    last = words[-1] if words else ""
    whole = last.isascii() and "".join(words).isalpha()  # neither apostrophes nor hyphens
    return whole and last not in _TAILS and not _is_symbol(last) and _SPELLING.isdisjoint(words[:-1])


def _wait_s(words: Sequence[str]) -> float:
    """Return the wait after words where a capital is a letter that was said with a word for it."""
    start = len(words)
    while start and (_is_symbol(words[start - 1]) or _is_misheard(words[max(0, start - 2) : start + 1])):
        start -= 1
    while start < len(words) and (words[start] in _AMONG or (start and words[start] in ("a", "i"))):
        start += 1
    said, before = words[start:], words[max(0, start - _NEAR) : start]
    numbers, letters = list(filter(_is_number, said)), "".join(filter(_is_letter, said))
    if (numbers or letters not in ("", "a", "i")) and said[-1] in _OPEN:
        return WAIT_S
    if not letters:
        return _number_wait_s(said, before) if numbers else 0.0
    if numbers:
        spelled = (not letters.islower() or len(said) > 2) and said[-2:] not in (["a", "m"], ["p", "m"])
    else:
        spelled = not letters.islower() or (len(letters) > 1 and letters not in _ABBREVIATIONS.split())
    return WAIT_S if spelled else 0.0


def _number_wait_s(said: Sequence[str], before: Sequence[str]) -> float:
    """Return the wait after number words that follow others; another word among them counts as a misheard digit."""
    read = [word if _is_number(word) or word in TIMES else "zero" for word in said if word not in _PAUSING]
    digits = digits_of(read)
    length = next((_LENGTHS[word] for word in reversed(before) if word in _LENGTHS), 0)
    if before and ((before[-1] in BEFORE_TIME and len(digits) < 5) or digits == "911"):
        return 0.0
    if not length and not _BEGUN.search(" ".join(before)):
        singles = [word in _SINGLE or word.isdecimal() for word in said]
        fewest = 2 if len(before) <= _OPENING else 3
        if sum(single and said[max(0, at - 1)] not in TENS for at, single in enumerate(singles)) < fewest:
            return 0.0
    opening = 0 < len(before) <= _OPENING and not length  # perhaps a digit of the number that was misheard
    return _missing_wait_s(len(digits) + opening, length or _TELEPHONE)


def _missing_wait_s(digits: int, length: int) -> float:
    missing = max(0, length - digits)
    return _NEARLY_S[missing] if missing < (len(_NEARLY_S) if length > LONG else 1) else WAIT_S


def _chinese_wait_s(text: str) -> float:
    """Return the wait after characters of Mandarin: digits that are read one by one, or the announcement of some."""
    run = _CHINESE_RUN.search(text)
    if run is None:
        return WAIT_S if _CHINESE_BEGUN.search(text) else 0.0
    before, digits = text[: run.start()], len(run[0])
    length = next((known for name, known in _CHINESE_LENGTHS.items() if name in before[-8:]), _CHINESE_MOBILE)
    return _missing_wait_s(digits, length) if digits > 1 or _CHINESE_BEGUN.search(before) else 0.0


def _is_misheard(words: Sequence[str]) -> bool:
    """Whether the middle one of three words stands between two numbers and does not link them."""
    return len(words) == 3 and _is_number(words[0]) and _is_number(words[2]) and words[1] not in _LINKS


def _is_symbol(word: str) -> bool:
    return _is_number(word) or _is_letter(word) or word in _AMONG or word in TIMES


def _is_number(word: str) -> bool:
    return word in _NUMBERS or word.isdecimal()


def _is_letter(word: str) -> bool:
    return len(word) == 1 and word.isalpha() and word != "o"
