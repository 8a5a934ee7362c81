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


def without_ideographs(text: str) -> str:
    """Replace each ideograph by a space."""
    return text if text.isascii() else _IDEOGRAPH.sub(" ", text)


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
    return "".join(dict.fromkeys(filter(_is_lost, unicodedata.normalize("NFC", text))))


def is_spellable(text: str) -> bool:
    """Whether no letter of a text is `unspellable`."""
    return text.isascii() or not any(map(_is_lost, unicodedata.normalize("NFC", text)))


@lru_cache(maxsize=4096)
def _is_lost(character: str) -> bool:
    if character.isascii() or unicodedata.category(character) not in ("Ll", "Lu", "Lt", "Lo"):
        return False
    plain = folded(character)
    return not (is_ideograph(character) or (plain.isascii() and plain != ""))
