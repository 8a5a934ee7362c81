"""Marks of labeled words: comma, period and question mark after a word, and whether it is capitalized."""

from __future__ import annotations

import msgspec

MARKS = ("", ",", ".", "?")
NONE, COMMA, PERIOD, QUESTION = range(4)
ENDS = (PERIOD, QUESTION)


class Labeled(msgspec.Struct, frozen=True, gc=False):
    """Word with the index of its mark in `MARKS`, and whether its first letter is upper case."""

    word: str
    mark: int = NONE
    capital: bool = False
