"""Written English in the acoustic model's spelling: a-z, apostrophe and spaces, numbers and their units as words.

Used for training texts, references and key terms alike; `as_written` gives the words of a text their capitals and marks
again. `model.text.notations` handles numbers and units. Signs that
are not spoken and letters of other alphabets are dropped; `model.text.letters.unspellable` lists the latter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from model.text.letters import IDEOGRAPHS, folded, has_ideographs, ideographs_apart
from model.text.notations import expand_numbers

# Abbreviations and their words. Most transcripts spell "mr" and "dr" in full.
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
    "km": "kilometers",
    "sq": "square",
}
_SHORT_RE = re.compile(
    r"(?<![\w.])(?:" + "|".join(re.escape(key) for key in sorted(_SHORT, key=len, reverse=True)) + r")(?![\w])"
)
_SIGNS = {"&": "and", "%": "percent", "+": "plus", "=": "equals", "@": "at", "°": "degrees"}
_REST = re.compile(f"[^a-z' {IDEOGRAPHS}]+")
_EDGES = re.compile(r"(?<![a-z])'+|'+(?![a-z])")

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿")
_SHOWN = re.compile(r"\W*(?P<core>.*?)(?P<after>\W*)")
MARKS = ",.?"  # of `as_written`
MOST_DIGITS = 8  # of a quantity; longer ones are telephone and account numbers, spoken digit by digit

_AMOUNT = r"\d+(?:,\d{3})*(?:\.\d+)?"
_PERCENT = re.compile(rf"({_AMOUNT})\s?%")
_YEAR = re.compile(r"(\d{4})(?=\s?年)")
_NUMBER = re.compile(_AMOUNT)


def spoken(text: str) -> str:
    """Spoken form of a text: "Dr. Smith paid $3.50 in 1984" -> "doctor smith paid three point …".

    In Chinese text each character is a word, numbers become Chinese, and words in Latin letters stay.
    """
    plain = folded(text)
    if has_ideographs(plain):
        plain = ideographs_apart(expand_chinese_numbers(plain))
    else:
        plain = _SHORT_RE.sub(lambda short: _SHORT[short[0]], expand_numbers(plain))
        for sign, word in _SIGNS.items():
            plain = plain.replace(sign, f" {word} ")
    return " ".join(_EDGES.sub(" ", _REST.sub(" ", plain.replace("-", " "))).split())


def tokens_of(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each token of English text, its words as spoken, and those words `as_written`."""
    tokens = text.split()
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        said = spoken(token).split()
        yield token, said, as_written(token, said, continues=following[:1].islower())


def as_written(token: str, said: Sequence[str], *, continues: bool) -> list[str]:
    """Return the spoken words of a token with its capitals, and its mark of `MARKS`, if it has one, at the end.

    `continues`: a token without a capital follows. The period of an abbreviation does not end a sentence.
    """
    parsed = _SHOWN.fullmatch(token.replace("’", "'"))
    if parsed is None or not said:
        return list(said)
    core, after = parsed["core"], parsed["after"]
    parts = re.split("[-.]", core)
    spelled = [folded(part) for part in parts] == list(said)
    if "." in core or (core.isalpha() and not spelled):
        after = after.removeprefix(".")
    if not spelled:
        parts = [said[0][:1].upper() + said[0][1:] if core[:1].isupper() else said[0], *said[1:]]
    if continues and ("..." in after or "…" in after):
        mark = ","
    else:
        signs = ("?", "?"), (".!…", "."), (",;:—–", ",")
        mark = next((mark for kind, mark in signs if any(sign in after for sign in kind)), "")
    return [*parts[:-1], parts[-1] + mark]


def expand_chinese_numbers(text: str) -> str:
    """Replace the numbers of Chinese text by characters: "1998年" is 一九九八年, "3.5%" 百分之三点五."""
    text = _PERCENT.sub(lambda at: f"百分之{_number(at[1])}", text)
    text = _YEAR.sub(lambda at: _each(at[1]), text)
    return _NUMBER.sub(lambda at: _number(at[0]), text)


def _number(text: str) -> str:
    whole, _, fraction = text.replace(",", "").partition(".")
    return _integer(whole) + (f"点{_each(fraction)}" if fraction else "")


def _each(digits: str) -> str:
    return "".join(_DIGITS[int(digit)] for digit in digits)


def _integer(digits: str) -> str:
    if len(digits) > MOST_DIGITS or (len(digits) > 1 and digits[0] == "0"):
        return _each(digits)
    value, groups = int(digits), list[str]()
    if value == 0:
        return _DIGITS[0]
    for name in _GROUPS:
        value, rest = divmod(value, 10_000)
        groups.append(f"{_below_ten_thousand(rest, padded=value > 0)}{name if rest else ''}")
    said = "".join(reversed(groups))
    return said.removeprefix("一") if said.startswith("一十") else said


def _below_ten_thousand(value: int, *, padded: bool) -> str:
    """Spoken form of 0 <= value < 10,000; `padded` if digits precede it, so that a zero in front is spoken as 零."""
    said = ""
    for power in (3, 2, 1, 0):
        digit = value // 10**power % 10
        if digit:
            said += _DIGITS[digit] + _PLACES[power]
        elif value % 10**power and (said or padded) and not said.endswith("零"):
            said += "零"
    return said
