"""Written English in the acoustic model's spelling: a-z, apostrophe and spaces, numbers and their units as words.

Used for training texts, references and key terms alike. `model.text.notations` handles numbers and units. Signs that
are not spoken and letters of other alphabets are dropped; `model.text.letters.unspellable` lists the latter.
"""

from __future__ import annotations

import re

from model.text.chinese_numbers import expand_chinese_numbers
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


def spoken(text: str) -> str:
    """Spoken form of a text: "Dr. Smith paid $3.50 in 1984" -> "doctor smith paid three point …".

    In Chinese text each character is a word, numbers become Chinese, and words in Latin letters stay.
    """
    plain = folded(text)
    if has_ideographs(plain):
        plain = ideographs_apart(expand_chinese_numbers(plain))
    else:
        plain = _SHORT_RE.sub(lambda found: _SHORT[found[0]], expand_numbers(plain))
        for sign, word in _SIGNS.items():
            plain = plain.replace(sign, f" {word} ")
    return " ".join(_EDGES.sub(" ", _REST.sub(" ", plain.replace("-", " "))).split())
