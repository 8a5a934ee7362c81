"""Marks of labeled words: comma, period and question mark after a word, and whether it is capitalized.

Marks and capitals by rules are used for interim results, for languages without a tagger, and as the baseline of the
tagger's evaluation: the first word of a sentence and "I" are capitalized, one mark ends it, and the first two words
decide whether it is a question.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MARKS = ("", ",", ".", "?")
NONE, COMMA, PERIOD, QUESTION = range(4)
ENDS = (PERIOD, QUESTION)


class Labeled(msgspec.Struct, frozen=True, gc=False):
    """Word with the index of its mark in `MARKS`, and whether its first letter is upper case."""

    word: str
    mark: int = NONE
    capital: bool = False


QUESTION_WORDS = {"what", "who", "whom", "whose", "where", "when", "why", "how", "which"}
_ASKED = {"what's", "who's", "where's", "when's", "why's", "how's"}
_HOW = {"about", "far", "long", "many", "much", "often", "old"}
_PRONOUNS = {
    "i", "you", "he", "she", "it", "we", "they", "this", "that", "there", "these", "those", "anyone", "anything",
}  # fmt: skip
_DETERMINERS = {"the", "a", "an", "my", "your", "his", "her", "its", "our", "their", "any"}
_SUBJECTS = _PRONOUNS | _DETERMINERS
_NEVER_COMMANDS = {
    "am", "is", "are", "was", "were", "does", "did", "has", "can", "could", "will", "would", "should", "shall", "may",
    "isn't", "aren't", "wasn't", "weren't", "doesn't", "didn't", "hasn't", "can't", "couldn't", "won't", "wouldn't",
    "shouldn't",
}  # fmt: skip
_MAYBE_COMMANDS = {"do", "have", "don't", "haven't"}  # "do the dishes", "have a nice day"
_VERBS = _NEVER_COMMANDS | _MAYBE_COMMANDS | {"had"}


def capital_i(text: str) -> str:
    """Return "I" and "I'm" for "i" and "i'm", other words as they are."""
    return "I" + text[1:] if text == "i" or text.startswith("i'") else text


def capitalized(text: str) -> str:
    """Return the text with its first letter in upper case, after any apostrophes."""
    bare = text.lstrip("'")
    return text[: len(text) - len(bare)] + bare[:1].upper() + bare[1:]


def is_question(words: Sequence[str]) -> bool:
    """Whether the first two words of a sentence make it a question: "is it", "do you", "what are", "how many"."""
    first, second = (*words[:2], "", "")[:2]
    if first in _ASKED:
        return True
    if first in QUESTION_WORDS:
        return second in _VERBS or (first == "how" and second in _HOW)
    return second in (_SUBJECTS if first in _NEVER_COMMANDS else _PRONOUNS if first in _MAYBE_COMMANDS else ())
