"""Marks and capitals by fixed rules: a capital where a sentence begins, "I", one mark at the end.

What interim results show, what languages without a tagger get, and the baseline that the tagger is measured against.
Whether a sentence asks is told from its first two words.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case; apostrophes before it stay."""
    bare = text.lstrip("'")
    return text[: len(text) - len(bare)] + bare[:1].upper() + bare[1:]


def is_question(words: Sequence[str]) -> bool:
    """Decide by the first two words of a sentence: "is it", "do you", "what are", "how many", "where's"."""
    first, second = (*words[:2], "", "")[:2]
    if first in _ASKED:
        return True
    if first in QUESTION_WORDS:
        return second in _VERBS or (first == "how" and second in _HOW)
    return second in (_SUBJECTS if first in _NEVER_COMMANDS else _PRONOUNS if first in _MAYBE_COMMANDS else ())
