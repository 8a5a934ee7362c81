"""Written Mandarin as it is said: simplified characters, numbers among them, no punctuation."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

from model.errors import ModelError, install_hint
from model.text.letters import IDEOGRAPHS

_BREAK = re.compile(r"[。！？；;!?\n]+")
_OTHER = re.compile(f"[^{IDEOGRAPHS}]+")


def sentences_of(text: str) -> list[str]:
    """Sentences of a text, in characters alone; those with letters are left out, for nobody says how they are read.

    Raises: ModelError where the optional packages are missing.
    """
    plain = simplified(unicodedata.normalize("NFKC", text))
    parts = (part for part in _BREAK.split(plain) if part and not re.search("[A-Za-z]", part))
    return [kept for part in parts if (kept := _OTHER.sub("", _said(part)))]


def characters_of(text: str) -> str:
    """What transcripts are compared by: simplified characters, lower-case letters, 幺 as 一, no spaces or marks.

    Raises: ModelError where the optional packages are missing.
    """
    plain = simplified(unicodedata.normalize("NFKC", text)).casefold().replace("幺", "一")
    return "".join(character for character in plain if unicodedata.category(character)[0] in "LN")


def simplified(text: str) -> str:
    """Traditional characters as simplified ones."""
    return text if text.isascii() else str(_converter().convert(text))


@cache
def _converter() -> Any:
    try:
        import opencc
    except ModuleNotFoundError as error:
        raise ModelError(f"Chinese text needs the optional package opencc: {install_hint('mandarin')}") from error
    return opencc.OpenCC("t2s")


def _said(text: str) -> str:
    """A text with its numbers as they are said; one that cannot be, for it has too many digits, without them."""
    import cn2an  # beside opencc, which was needed before

    try:
        return str(cn2an.transform(text, "an2cn")) if re.search("[0-9]", text) else text
    except ValueError:
        return text
