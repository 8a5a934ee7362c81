"""Scripts and letters: which characters count as words, and folding of letters to a-z."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
"""Character class of scripts that are written without spaces: Hiragana, Katakana, Han."""
_IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")
_LATIN = re.compile(r"LATIN SMALL LETTER ([A-Z])(?: WITH .*)?")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "´": "'", "`": "'", "＇": "'"})
_LETTERS = {"æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ı": "i", "ȷ": "j", "ŋ": "ng", "ə": "e", "ɛ": "e", "ɔ": "o"}


def has_ideographs(text: str) -> bool:
    """Whether a text has a character of a script written without spaces."""
    return not text.isascii() and _IDEOGRAPH.search(text) is not None


def is_ideograph(text: str) -> bool:
    """Whether a text is one character of a script written without spaces."""
    return _IDEOGRAPH.fullmatch(text) is not None


def ideographs_apart(text: str) -> str:
    """Put each ideograph between spaces, because language models count it as a word."""
    return text if text.isascii() else " ".join(_IDEOGRAPH.sub(r" \g<0> ", text).split())


def folded(text: str) -> str:
    """Fold a text to lower case without accents: "Łódź" to "lodz". Characters that do not fold to a-z stay."""
    text = text.translate(_QUOTES)
    return text.lower() if text.isascii() else "".join(map(_folded, unicodedata.normalize("NFC", text)))


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    if is_ideograph(character):
        return unicodedata.normalize("NFKC", character)
    plain = unicodedata.normalize("NFKD", character).casefold()
    return "".join(_base(letter) for letter in plain if not unicodedata.combining(letter))


def _base(letter: str) -> str:
    latin = None if letter.isascii() else _LATIN.fullmatch(unicodedata.name(letter, ""))
    return _LETTERS.get(letter, letter) if latin is None or letter in _LETTERS else latin[1].lower()


def unspellable(text: str) -> str:
    """Letters of other alphabets in a text, each once: those that neither fold to a-z nor are ideographs.

    Modifiers, such as the length mark of some transcriptions, do not count as letters.
    """
    left = (letter for letter in unicodedata.normalize("NFC", text) if not letter.isascii())
    lost = (letter for letter in left if unicodedata.category(letter) in ("Ll", "Lu", "Lt", "Lo"))
    return "".join(dict.fromkeys(letter for letter in lost if not _spelled(letter)))


def _spelled(letter: str) -> bool:
    plain = folded(letter)
    return is_ideograph(letter) or (plain.isascii() and plain != "")
