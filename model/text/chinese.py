"""Normalization of written Mandarin: simplified characters, numbers as spoken, no punctuation."""

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
    """Split a text into sentences of Chinese characters. Sentences with Latin letters are dropped: no reading is known.

    Raises: ModelError if the optional packages are missing.
    """
    plain = simplified(unicodedata.normalize("NFKC", text))
    parts = (part for part in _BREAK.split(plain) if part and not re.search("[A-Za-z]", part))
    return [sentence for part in parts if (sentence := _OTHER.sub("", _said(part)))]


def characters_of(text: str) -> str:
    """Form in which transcripts are compared: simplified characters, lower-case letters, 幺 as 一, no spaces or marks.

    Raises: ModelError if the optional packages are missing.
    """
    plain = simplified(unicodedata.normalize("NFKC", text)).casefold().replace("幺", "一")
    return "".join(character for character in plain if unicodedata.category(character)[0] in "LN")


def simplified(text: str) -> str:
    """Convert traditional characters to simplified ones."""
    return text if text.isascii() else str(_converter().convert(text))


@cache
def _converter() -> Any:
    try:
        import opencc
    except ModuleNotFoundError as error:
        raise ModelError(f"Chinese text needs the optional package opencc: {install_hint('mandarin')}") from error
    return opencc.OpenCC("t2s")


def _said(text: str) -> str:
    """Replace numbers by their spoken form; numbers with too many digits stay."""
    import cn2an  # installed together with opencc, which `simplified` has imported

    try:
        return str(cn2an.transform(text, "an2cn")) if re.search("[0-9]", text) else text
    except ValueError:
        return text
