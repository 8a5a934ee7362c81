"""Formatting of recognised words: capitals, a mark at the end of a sentence, digits. Pure, English only.

The model writes lower-case letters and apostrophes, so this is guesswork from the words alone, off unless a client asks
for it. Times are never changed: a number written with digits lasts from its first word's start to its last word's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.ctc.words import Word, joined
from server.text.numerals import numbers

_WH = {"what", "who", "whom", "whose", "where", "when", "why", "how", "which"}
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


@dataclass(frozen=True, slots=True)
class Style:
    """Formatting that a client asked for; none by default."""

    punctuate: bool = False
    numerals: bool = False


PLAIN = Style()


@dataclass(frozen=True, slots=True)
class FormattedWord:
    """A recognised word, or the words of one number joined by spaces, and its formatted text."""

    word: Word
    text: str


class Sentences:
    """Formats the segments of one channel in order, because a sentence may go on from one segment to the next."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self.opening: tuple[str, ...] = ()  # the first two words of a sentence that a cut left open

    def partial(self, words: Sequence[Word]) -> tuple[FormattedWord, ...]:
        """Format an unfinished segment so that later words change none of it: "twenty" may yet become 21.

        Hence without digits and without a mark at the end.
        """
        return format_words(words, replace(self._style, numerals=False), self.opening, ends=False)

    def final(self, words: Sequence[Word], *, ends: bool) -> tuple[FormattedWord, ...]:
        """Format a segment; `ends` is false if it was cut for its length and the sentence goes on."""
        formatted = format_words(words, self._style, self.opening, ends=ends)
        self.opening = () if ends else (*self.opening, *(word.text for word in words[:2]))[:2]
        return formatted


def format_words(
    words: Sequence[Word], style: Style = PLAIN, opening: tuple[str, ...] = (), *, ends: bool = True
) -> tuple[FormattedWord, ...]:
    """Format the words of one sentence, which follow its `opening`; never returns more words than it got."""
    formatted = _with_digits(words) if style.numerals else [FormattedWord(word, word.text) for word in words]
    if style.punctuate and formatted:
        formatted = [replace(f, text=_capital_i(f.text)) for f in formatted]
        if not opening:
            formatted[0] = replace(formatted[0], text=_capitalised(formatted[0].text))
        if ends:
            asked = _is_question((*opening, *(word.text for word in words[:2]))[:2])
            formatted[-1] = replace(formatted[-1], text=formatted[-1].text + ("?" if asked else "."))
    return tuple(formatted)


def _with_digits(words: Sequence[Word]) -> list[FormattedWord]:
    formatted: list[FormattedWord] = []
    done = 0
    for number in numbers(words):
        formatted += [FormattedWord(word, word.text) for word in words[done : number.start]]
        formatted.append(FormattedWord(_joined(words[number.start : number.end]), number.text))
        done = number.end
    return formatted + [FormattedWord(word, word.text) for word in words[done:]]


def _joined(words: Sequence[Word]) -> Word:
    return Word(
        text=joined(word.text for word in words),
        start_s=words[0].start_s,
        end_s=words[-1].end_s,
        confidence=sum(word.confidence for word in words) / len(words),
    )


def _capital_i(text: str) -> str:
    return "I" + text[1:] if text == "i" or text.startswith("i'") else text


def _capitalised(text: str) -> str:
    """Return the text with its first letter in upper case; apostrophes before it stay."""
    bare = text.lstrip("'")
    return text[: len(text) - len(bare)] + bare[:1].upper() + bare[1:]


def _is_question(opening: tuple[str, ...]) -> bool:
    """Decide by the first two words: "is it", "do you", "what are", "how many", "where's"."""
    first, second = (*opening, "", "")[:2]
    if first in _ASKED:
        return True
    if first in _WH:
        return second in _VERBS or (first == "how" and second in _HOW)
    return second in (_SUBJECTS if first in _NEVER_COMMANDS else _PRONOUNS if first in _MAYBE_COMMANDS else ())
