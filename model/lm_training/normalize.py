"""Written English as the acoustic model spells it: a-z, apostrophe and spaces, numbers as words.

Covers the notations that are frequent in the training texts; other signs are dropped.
"""

from __future__ import annotations

import re
import unicodedata

from model.ctc.tokens import IDEOGRAPHS
from model.synthesis.spoken_numbers import DIGITS, cardinal, ordinal

_QUOTES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "´": "'", "`": "'", "—": " ", "–": " ", "‑": "-"})
_LETTERS = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th"}
# Abbreviations and their words. "mr" and "dr" are spelled in full in most transcripts.
_SHORT = {
    "mr.": "mister",
    "mrs.": "missus",
    "messrs.": "messieurs",
    "dr.": "doctor",
    "prof.": "professor",
    "gen.": "general",
    "col.": "colonel",
    "capt.": "captain",
    "lieut.": "lieutenant",
    "rev.": "reverend",
    "hon.": "honorable",
    "etc.": "etcetera",
    "e.g.": "for example",
    "i.e.": "that is",
    "vs.": "versus",
    "&": "and",
    "%": " percent",
    "+": " plus ",
    "=": " equals ",
    "km": "kilometers",
    "sq": "square",
}
_SHORT_RE = re.compile(
    r"(?<![\w.])(?:"
    + "|".join(re.escape(key) for key in sorted(_SHORT, key=len, reverse=True) if key[0].isalpha())
    + r")(?![\w])"
)
_MONEY = re.compile(r"([$£€])\s?(\d+(?:,\d{3})*(?:\.\d+)?)(\s(?:million|billion|trillion|thousand|hundred))?")
_COIN = {"$": "dollars", "£": "pounds", "€": "euros"}
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:st|nd|rd|th|s)?(?![a-z\d])")
_CHARACTER = re.compile(f"[{IDEOGRAPHS}]")
_REST = re.compile(r"[^a-z' ]+")
_EDGES = re.compile(r"(?<![a-z])'+|'+(?![a-z])")


def spoken(text: str) -> str:
    """Return the words of a text as said: "Dr. Smith paid $3.50 in 1984" -> "doctor smith paid three point …"."""
    if characters := _CHARACTER.findall(text):  # Chinese: each is a word, and anything else was left out before
        return " ".join(characters)
    text = unicodedata.normalize("NFKD", text.translate(_QUOTES).lower())
    text = "".join(_LETTERS.get(letter, letter) for letter in text if not unicodedata.combining(letter))
    text = _SHORT_RE.sub(lambda found: _SHORT[found[0]], text)
    text = _MONEY.sub(lambda found: f"{found[2]}{found[3] or ''} {_COIN[found[1]]}", text)
    for sign in "&%+=":
        text = text.replace(sign, f" {_SHORT[sign]} ")
    text = _NUMBER.sub(lambda found: f" {_number(found[0])} ", text)
    text = _EDGES.sub(" ", _REST.sub(" ", text.replace("-", " ")))
    return " ".join(text.split())


def _number(text: str) -> str:
    """Return a written number as said: years in pairs, ordinals, decimals, long ones digit by digit."""
    grouped, digits = "," in text, text.replace(",", "")
    if digits.endswith(("st", "nd", "rd", "th")):
        return _ordinal(int(float(digits[:-2])))
    if digits.endswith("s"):
        return _plural(_number(digits[:-1]))
    whole, _, fraction = digits.partition(".")
    if fraction:
        return f"{_integer(whole)} point {' '.join(DIGITS[int(digit)] for digit in fraction)}"
    return _integer(whole) if grouped or not _is_year(whole) else _year(whole)


def _ordinal(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    if not rest:
        return f"{_integer(str(value))}th"
    return f"{_integer(str(100 * hundreds))} and {ordinal(rest)}" if hundreds else ordinal(rest)


def _is_year(digits: str) -> bool:
    return len(digits) == 4 and (1100 <= int(digits) < 2000 or 2010 <= int(digits) < 2100)


def _year(digits: str) -> str:
    century, rest = int(digits[:2]), int(digits[2:])
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def _integer(digits: str) -> str:
    value = int(digits)
    if len(digits) > 1 and digits[0] == "0":
        return " ".join(DIGITS[int(digit)] for digit in digits)
    if value < 1_000_000:
        return cardinal(value)
    if value < 1_000_000_000_000:
        millions, rest = divmod(value, 1_000_000)
        if millions >= 1000:
            billions, left = divmod(millions, 1000)
            head = f"{cardinal(billions)} billion" + (f" {cardinal(left)} million" if left else "")
        else:
            head = f"{cardinal(millions)} million"
        return head + (f" {cardinal(rest)}" if rest else "")
    return " ".join(DIGITS[int(digit)] for digit in digits)


def _plural(words: str) -> str:
    return words[:-1] + "ies" if words.endswith("y") else words + "s"
