"""Formatting of recognized words: capitals, commas, periods, question marks, digits. Pure.

Most models output lower-case letters and apostrophes, so formatting is inferred from the words alone, and only on
request; capitals and marks of a model that writes them are kept instead. English finals are tagged by a model
(`model.punctuation`). Interim results, whose words must not change, and other languages are formatted by conservative
rules. The operator's own written forms come into both; a phrase replaces a number that it covers whole. Times do not
change: a number in digits, or a phrase, lasts from the start of its first word to the end of its last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec

from model.ctc.words import Word, joined
from model.punctuation.marks import ENDS, MARKS, PERIOD, QUESTION, Labeled, capital_i, capitalized, is_question
from model.punctuation.tagger import shipped_tagger
from model.text.letters import folded, has_ideographs
from model.text.spelled import MARKS as WRITTEN_MARKS
from server.text.line import PAUSE_S, Span
from server.text.numbers.number_words import is_row
from server.text.own_forms import MARKS as FORM_MARKS
from server.text.own_forms import NO_OWN_FORMS, OwnForms
from server.text.redaction_kinds import SHORTEST, Redaction
from server.text.written_forms import FLUENT, Speech, spelled_code, written_forms

ALPHANUMERIC = "alphanumeric"  # name of the grammar of spelled codes
AFTER_DIGITS = ("",)  # `opening` after a segment of digits only, which has no period
OPENING_WORDS = 16  # words kept of an incomplete sentence: the tagger's context on one side


@dataclass(frozen=True, slots=True)
class Style:
    """Formatting requested by a client; none by default."""

    punctuate: bool = False
    numerals: bool = False
    english: bool = True  # other languages are punctuated by rules only
    written: bool = False  # the model writes capitals and marks: they are kept, and no others are added
    own: OwnForms = NO_OWN_FORMS
    codes: bool = False  # a segment is one spelled code, and `numerals` writes it so
    settled_only: bool = False  # an unfinished segment ends before a phrase of `own` that may be unfinished

    @property
    def formats(self) -> bool:
        """Whether words are shown in another form than the recognized one."""
        return self.punctuate or self.numerals

    @property
    def adds_marks(self) -> bool:
        """Whether capitals and marks are added to the words."""
        return self.punctuate and not self.written

    def with_own(self, own: OwnForms, redact: Collection[Redaction] = (), *, settled_only: bool = False) -> Style:
        """Return this formatting with the operator's own written forms; none where words are shown as recognized.

        In a stream with `redact`, whose numbers are masked before, no form writes as many digits as are masked.
        """
        if not self.formats:
            return self
        if redact:
            own = own.with_fewer_digits(min(SHORTEST[kind] for kind in redact))
        return replace(self, own=own, settled_only=settled_only)

    def with_grammar(self, grammar: str) -> Style:
        """Return this formatting for words of a grammar: a spelled code has no marks."""
        codes = grammar == ALPHANUMERIC
        return replace(self, codes=codes, punctuate=self.punctuate and not codes)


PLAIN = Style()
FULL_WIDTH = ("", "，", "。", "？")  # the marks for scripts without spaces
SENTENCE_MARKS = frozenset(".,?!…，。？！")  # after which an own written form gets no other


class FormattedWord(msgspec.Struct, frozen=True, gc=False):
    """A recognized word, or the words of a number or phrase joined by spaces, with its formatted text."""

    word: Word
    text: str


class Sentences:
    """Formatter of one channel's segments, in order: a sentence may continue from one segment to the next."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._tagger = shipped_tagger() if style.adds_marks and style.english else None
        # Words of the incomplete sentence at the end of a segment: the last ones for the tagger, the first for rules.
        self.opening: tuple[str, ...] = ()

    def partial(self, words: Sequence[Word]) -> tuple[FormattedWord, ...]:
        """Format an unfinished segment such that later words do not change it: "twenty" may become 21.

        So only rules apply, without digits and punctuation: a comma could disappear again with the next words. A
        phrase of the operator may become longer; `stable` counts the words before it.
        """
        style = self._style
        if not style.own:
            return self._plain_partial(words)
        if style.settled_only:
            words = words[: style.own.settled([word.text for word in words])]
        return format_words(words, replace(style, numerals=False), self._sentence, ends=False)

    @property
    def _sentence(self) -> tuple[str, ...]:
        return () if self.opening == AFTER_DIGITS else self.opening

    def _plain_partial(self, words: Sequence[Word]) -> tuple[FormattedWord, ...]:
        """Return what `format_words` makes of them without written forms, in a fifth of its time."""
        if not self._style.adds_marks:
            return tuple([FormattedWord(word, word.text) for word in words])
        formatted = [FormattedWord(word, capital_i(word.text)) for word in words]
        if words and not self._sentence:
            formatted[0] = FormattedWord(words[0], capitalized(words[0].text))
        return tuple(formatted)

    def stable(self, words: Sequence[Word], count: int) -> int:
        """Return how many words of `partial` can no longer change where this many recognized ones cannot."""
        own = self._style.own
        if not own:
            return count
        texts = [word.text for word in words[:count]]
        settled = own.settled(texts)
        return settled - sum(span.end - span.start - 1 for span in own.spans(texts[:settled]))

    def final(self, words: Sequence[Word], *, ends: bool, pause_s: float = PAUSE_S) -> tuple[FormattedWord, ...]:
        """Format a segment; `ends` is False if it was cut at the length limit and the sentence continues.

        A segment of digits only may be a part of a number that is read with pauses: no period follows it, and after
        another one its words are digits even where they are small. `pause_s`: of a pause that separates two digits.
        """
        texts = [word.text for word in words]
        digits = self._style.numerals and self._style.english and is_row([_plain(text) for text in texts])
        speech = Speech(pause_s, continues=digits and self.opening == AFTER_DIGITS)
        sentence, ends = self._sentence, ends and not digits
        if self._tagger is None:
            formatted = format_words(words, self._style, sentence, ends=ends, speech=speech)
            self.opening = () if ends else (*sentence, *texts[:2])[:2]
        else:
            labels = _with_written(words, self._tagger.tag(texts, sentence, ends=ends), ends=ends)
            self.opening = () if ends else _open_words(sentence, labels)
            formatted = format_words(words, self._style, labels=labels, speech=speech)
        if digits:
            self.opening = AFTER_DIGITS
        return formatted


def format_words(
    words: Sequence[Word],
    style: Style = PLAIN,
    opening: tuple[str, ...] = (),
    *,
    ends: bool = True,
    labels: Sequence[Labeled] | None = None,
    speech: Speech = FLUENT,
) -> tuple[FormattedWord, ...]:
    """Format words by their labels, by default those of the rules for one sentence that began with `opening`.

    Never returns more words than given.
    """
    if style.adds_marks and labels is None:
        labels = _by_rules([word.text for word in words], opening, ends=ends)
    formatted = []
    for start, end, text, is_own in _written(words, style, speech):
        word = words[start] if end == start + 1 else _joined(words[start:end])
        written = text
        if labels is not None:
            recognized = labels[start].word if text == word.text else text
            written = _shown(recognized, labels[start], labels[end - 1], word.text if is_own else None)
        formatted.append(FormattedWord(word, written))
    return tuple(formatted)


def _by_rules(texts: Sequence[str], opening: tuple[str, ...], *, ends: bool) -> list[Labeled]:
    labels = [Labeled(text, capital=not opening and i == 0) for i, text in enumerate(texts)]
    if labels and ends:
        question = is_question((*opening, *texts[:2]))
        labels[-1] = msgspec.structs.replace(labels[-1], mark=QUESTION if question else PERIOD)
    return labels


def _with_written(words: Sequence[Word], labels: Sequence[Labeled], *, ends: bool) -> Sequence[Labeled]:
    """Return labels with the capitals and marks of words that a network wrote; those of the sentence's ends stay.

    Each segment is written as a text of its own: it begins with a capital although its sentence may have begun before.
    """
    if not any(word.written for word in words):
        return labels
    joint: list[Labeled] = []
    for at, (word, label) in enumerate(zip(words, labels, strict=True)):
        begins = joint[-1].mark in ENDS if joint else label.capital
        text = word.written.rstrip(WRITTEN_MARKS)
        if folded(text) != word.text:  # also empty
            joint.append(msgspec.structs.replace(label, capital=label.capital or begins))
            continue
        mark = MARKS.index(word.written[len(text) :][:1])
        if at == len(words) - 1 and not (ends and mark in ENDS):
            mark = label.mark
        if at == 0 and text[1:] == word.text[1:]:
            text = word.text
        joint.append(Labeled(text, mark, begins or text[:1].isupper()))
    return joint


def _shown(text: str, first: Labeled, last: Labeled, said: str | None) -> str:
    """Return the text of a word or number with the capital of its first label and the mark of its last.

    `said`: the words of an own written form, None for others. Its capitals are the operator's, if it has any.
    """
    marks = FULL_WIDTH if has_ideographs(said or text) else MARKS
    mark = marks[last.mark]
    if said is None:
        return (capitalized(text) if first.capital else capital_i(text)) + mark
    written = capitalized(text) if first.capital and text == text.lower() else text
    return written if written[-1] in SENTENCE_MARKS else written + mark


def _open_words(opening: tuple[str, ...], labels: Sequence[Labeled]) -> tuple[str, ...]:
    """Return the last words of the incomplete sentence after these labels, at most OPENING_WORDS."""
    sentence = list(opening)
    for label in labels:
        sentence = [] if label.mark in ENDS else [*sentence[-OPENING_WORDS:], label.word]
    return tuple(sentence[-OPENING_WORDS:])


def _written(words: Sequence[Word], style: Style, speech: Speech) -> list[tuple[int, int, str, bool]]:
    """Return first word, end (exclusive) and text of each word and written form, in order, and which are own ones."""
    ours = _numerals(words, style, speech) if style.numerals else []
    own = style.own.spans([word.text for word in words]) if style.own else []
    own = [span for span in own if not any(_cuts(span, our) for our in ours)]
    covered = {at for span in own for at in range(span.start, span.end)}
    forms = [(span, False) for span in ours if span.start not in covered] + [(span, True) for span in own]
    pieces: list[tuple[int, int, str, bool]] = []
    done = 0
    for span, is_own in sorted(forms, key=lambda form: form[0].start):
        pieces += [(i, i + 1, words[i].text, False) for i in range(done, span.start)]
        pieces.append((span.start, span.end, span.text, is_own))
        done = span.end
    return pieces + [(i, i + 1, words[i].text, False) for i in range(done, len(words))]


def _numerals(words: Sequence[Word], style: Style, speech: Speech) -> list[Span]:
    """Return the written forms of numbers. A mark that the model wrote separates two, as a pause does, and is kept."""
    if style.codes and words:
        return [Span(0, len(words), spelled_code([word.text for word in words]))]
    if not style.written:
        return written_forms(words, english=style.english, speech=speech)
    plain: list[Word] = []
    marks: list[str] = []
    later_s = 0.0
    for word in words:
        text = _plain(word.text)
        times = {"start_s": word.start_s + later_s, "end_s": word.end_s + later_s}
        plain.append(msgspec.structs.replace(word, text=text, **times))
        marks.append(word.text[len(text) :])
        later_s += speech.pause_s if marks[-1] else 0.0
    spans = written_forms(plain, english=style.english, speech=speech)
    return [replace(one, text=one.text.removesuffix(marks[one.end - 1]) + marks[one.end - 1]) for one in spans]


def _plain(text: str) -> str:
    """Return a word without capitals, and without the marks after it."""
    return text if text.isalpha() and text.islower() else text.rstrip(FORM_MARKS).casefold()


def _cuts(span: Span, other: Span) -> bool:
    """Whether a span covers a part of another one, and not all of it."""
    overlaps = span.start < other.end and other.start < span.end
    return overlaps and not (span.start <= other.start and other.end <= span.end)


def _joined(words: Sequence[Word]) -> Word:
    return Word(
        text=joined(word.text for word in words),
        start_s=words[0].start_s,
        end_s=words[-1].end_s,
        confidence=sum(word.confidence for word in words) / len(words),
        language=words[-1].language,
        speaker=words[0].speaker,
    )
