"""Formatting of recognized words: capitals, commas, periods, question marks, digits. Pure.

The model outputs lower-case letters and apostrophes, so formatting is inferred from the words alone, and only on
request. English finals are tagged by a model (`model.punctuation`). Interim results, whose words must not change, and
other languages are formatted by conservative rules. Times do not change: a number in digits lasts from the start of
its first word to the end of its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.ctc.words import Word, joined
from model.punctuation.marks import ENDS, MARKS, PERIOD, QUESTION, Labelled
from model.punctuation.rules import capital_i, capitalised, is_question
from model.punctuation.tagger import shipped_tagger
from model.text.letters import has_ideographs
from server.text.written_forms import written_forms

OPENING_WORDS = 16  # words kept of an incomplete sentence: the tagger's context on one side


@dataclass(frozen=True, slots=True)
class Style:
    """Formatting requested by a client; none by default."""

    punctuate: bool = False
    numerals: bool = False
    english: bool = True  # other languages are punctuated by rules only


PLAIN = Style()
FULL_WIDTH = ("", "，", "。", "？")  # the marks for scripts without spaces


@dataclass(frozen=True, slots=True)
class FormattedWord:
    """A recognized word, or the words of a number joined by spaces, with its formatted text."""

    word: Word
    text: str


class Sentences:
    """Formatter of one channel's segments, in order: a sentence may continue from one segment to the next."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._tagger = shipped_tagger() if style.punctuate and style.english else None
        # Words of the incomplete sentence at the end of a segment: the last ones for the tagger, the first for rules.
        self.opening: tuple[str, ...] = ()

    def partial(self, words: Sequence[Word]) -> tuple[FormattedWord, ...]:
        """Format an unfinished segment such that later words do not change it: "twenty" may become 21.

        So only rules apply, without digits and punctuation: a comma could disappear again with the next words.
        """
        return format_words(words, replace(self._style, numerals=False), self.opening, ends=False)

    def final(self, words: Sequence[Word], *, ends: bool) -> tuple[FormattedWord, ...]:
        """Format a segment; `ends` is False if it was cut at the length limit and the sentence continues."""
        texts = [word.text for word in words]
        if self._tagger is None:
            formatted = format_words(words, self._style, self.opening, ends=ends)
            self.opening = () if ends else (*self.opening, *texts[:2])[:2]
            return formatted
        labels = self._tagger.tag(texts, self.opening, ends=ends)
        self.opening = () if ends else _open_words(self.opening, labels)
        return format_words(words, self._style, labels=labels)


def format_words(
    words: Sequence[Word],
    style: Style = PLAIN,
    opening: tuple[str, ...] = (),
    *,
    ends: bool = True,
    labels: Sequence[Labelled] | None = None,
) -> tuple[FormattedWord, ...]:
    """Format words by their labels, by default those of the rules for one sentence that began with `opening`.

    Never returns more words than given.
    """
    spans = _written(words, style) if style.numerals else [(i, i + 1, word.text) for i, word in enumerate(words)]
    if style.punctuate and labels is None:
        labels = _by_rules([word.text for word in words], opening, ends=ends)
    formatted = []
    for start, end, text in spans:
        word = words[start] if end == start + 1 else _joined(words[start:end])
        shown = text if labels is None else _shown(text, labels[start], labels[end - 1])
        formatted.append(FormattedWord(word, shown))
    return tuple(formatted)


def _by_rules(texts: Sequence[str], opening: tuple[str, ...], *, ends: bool) -> list[Labelled]:
    labels = [Labelled(text, capital=not opening and i == 0) for i, text in enumerate(texts)]
    if labels and ends:
        asked = is_question((*opening, *texts[:2]))
        labels[-1] = replace(labels[-1], mark=QUESTION if asked else PERIOD)
    return labels


def _shown(text: str, first: Labelled, last: Labelled) -> str:
    """Return the text of a word or number with the capital of its first label and the mark of its last."""
    marks = FULL_WIDTH if has_ideographs(text) else MARKS
    return (capitalised(text) if first.capital else capital_i(text)) + marks[last.mark]


def _open_words(opening: tuple[str, ...], labels: Sequence[Labelled]) -> tuple[str, ...]:
    """Return the last words of the incomplete sentence after these labels, at most OPENING_WORDS."""
    sentence = list(opening)
    for label in labels:
        sentence = [] if label.mark in ENDS else [*sentence[-OPENING_WORDS:], label.word]
    return tuple(sentence[-OPENING_WORDS:])


def _written(words: Sequence[Word], style: Style) -> list[tuple[int, int, str]]:
    """Return first word, end (exclusive) and text of each word and written form, in order."""
    spans: list[tuple[int, int, str]] = []
    done = 0
    for number in written_forms(words, english=style.english):
        spans += [(i, i + 1, words[i].text) for i in range(done, number.start)]
        spans.append((number.start, number.end, number.text))
        done = number.end
    return spans + [(i, i + 1, words[i].text) for i in range(done, len(words))]


def _joined(words: Sequence[Word]) -> Word:
    return Word(
        text=joined(word.text for word in words),
        start_s=words[0].start_s,
        end_s=words[-1].end_s,
        confidence=sum(word.confidence for word in words) / len(words),
    )
