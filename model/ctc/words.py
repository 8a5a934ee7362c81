"""A recognized word, and how words are joined to text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from model.text.letters import IDEOGRAPHS

_BETWEEN_IDEOGRAPHS = re.compile(  # or after a punctuation mark, or at a number in digits
    f"(?<=[{IDEOGRAPHS}，。？0-9%]) (?=[{IDEOGRAPHS}])|(?<=[{IDEOGRAPHS}，。？]) (?=[0-9])"
)


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who said a word: a number within its channel from 0, in the order of speech, and the confidence, 0 to 1.

    `other`: it is not the voice that the stream listens to.
    """

    number: int
    confidence: float
    other: bool = False


class Word(msgspec.Struct, frozen=True, gc=False):
    """A recognized word; times in seconds since the start of the decoder state, confidence 0 to 1.

    `language`: the tag that a model of several languages wrote after it; empty if there is none. `speaker`: None if
    speakers are not distinguished. `written`: the word with its capitals and the mark after it, where a network wrote a
    text; empty elsewhere. `acknowledges`: by its sound, whatever the text is, it only acknowledges.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float
    language: str = ""
    speaker: Speaker | None = None
    written: str = ""
    acknowledges: bool = False


def joined(texts: Iterable[str]) -> str:
    """Join words, with a space between two unless both are of a script without spaces, or one is a number in it."""
    text = " ".join(texts)
    return text if text.isascii() else _BETWEEN_IDEOGRAPHS.sub("", text)


def languages_of(words: Iterable[Word]) -> list[str]:
    """Return the languages of words, the one of most words first."""
    tags = [word.language for word in words if word.language]
    return [language for language, _ in Counter(tags).most_common()] if tags else []


def continued(before: str, text: str) -> str:
    """Return further text as it is appended to sent text: with a leading space if `joined` would have one."""
    last = before[-1:]
    return joined([last, text])[1:] if last and text else text
