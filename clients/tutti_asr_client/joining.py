"""Joins words to text, with or without spaces by their script."""

from __future__ import annotations

import re
from collections.abc import Iterable

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"  # Hiragana, Katakana, Han
_BETWEEN = re.compile(f"(?<=[{_UNSPACED}，。？]) (?=[{_UNSPACED}])")  # or after a punctuation mark


def joined(texts: Iterable[str]) -> str:
    """Join texts with spaces, except between two of scripts that are written without spaces."""
    text = " ".join(texts)
    return text if text.isascii() else _BETWEEN.sub("", text)
