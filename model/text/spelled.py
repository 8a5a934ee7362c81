"""Written English as the acoustic model spells it: a-z, apostrophe and spaces, numbers and their units as words.

One speller for texts that are learned, references and key terms. Notations are those of `model.text.notations`; signs
that nobody says are dropped, and letters of other alphabets too: `model.text.letters.unspellable` names those.
"""

from __future__ import annotations

import re

from model.text.chinese_numbers import said_in_chinese
from model.text.letters import IDEOGRAPHS, folded, has_ideographs, ideographs_apart
from model.text.notations import said

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
    """Return the words of a text as said: "Dr. Smith paid $3.50 in 1984" -> "doctor smith paid three point …".

    In Chinese text each character is a word, numbers are said in Chinese, and words in Latin letters stay.
    """
    plain = folded(text)
    if has_ideographs(plain):
        plain = ideographs_apart(said_in_chinese(plain))
    else:
        plain = _SHORT_RE.sub(lambda found: _SHORT[found[0]], said(plain))
        for sign, word in _SIGNS.items():
            plain = plain.replace(sign, f" {word} ")
    return " ".join(_EDGES.sub(" ", _REST.sub(" ", plain.replace("-", " "))).split())
