"""Redaction of numbers in recognized words: `redact=pci` and so on, in English and Mandarin. Pure.

A number is all number words that follow one another, also over several segments. What is masked does not depend on
checksums, because one misrecognized digit would break them: a number is masked if it is as long as the requested kinds
are, if more digits may follow, if it belongs to a number that is read out in groups (`digit_runs`), or if words such as
"card" announce it (`announcements`). Checksums only choose the label. docs/privacy.md states the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from model.ctc.words import Word
from server.text.announcements import WORDS_AFTER, Announcement, Announcements
from server.text.numbers import chinese_digits, spoken_digits
from server.text.numbers.digit_runs import FIRST_DIGITS, GROUP, RUN_S, DigitRun
from server.text.numbers.spoken_digits import Part
from server.text.redaction_kinds import CARD, LONG, NUMBER, SHORTEST, NumberLanguage, Redaction, label_of

WORDS_TO_END = {NumberLanguage.ENGLISH: 3, NumberLanguage.CHINESE: 6}  # after a group that may go on in the next final
WORDS_BETWEEN = {NumberLanguage.ENGLISH: 12, NumberLanguage.CHINESE: 24}  # before a short number of a run
MAX_PARTS = 64  # number words kept of an unfinished number
_MARKS = ".,?!，。？！"  # that stay after a masked number


class NumberWords(Protocol):
    """Number words of a language; see `spoken_digits`."""

    def plain(self, text: str) -> str:
        """Return a word without capitals and marks."""

    def may_become_number(self, text: str) -> bool:
        """Whether an unfinished word may be the beginning of a number word."""

    def parts(self, texts: Sequence[str], *, in_number: bool, ordinals: bool, wary: bool = False) -> list[Part]:
        """Return what each word is to the number at its place."""

    def sounds_like_digit(self, text: str) -> bool:
        """Whether a word is often a misheard digit."""

    def digits_of(self, texts: Sequence[str]) -> str:
        """Return the digits of number words."""

    def read_singly(self, texts: Sequence[str]) -> bool:
        """Whether number words are digits that are read one by one."""

    def is_amount(self, texts: Sequence[str], following: Sequence[str], before: str = "") -> bool:
        """Whether number words, between others, are an amount, and not digits that are read out."""

    def counts_digits(self, texts: Sequence[str], following: Sequence[str]) -> bool:
        """Whether number words and the words after them say how many digits there are."""


_WORDS: Mapping[NumberLanguage, NumberWords] = {
    NumberLanguage.ENGLISH: spoken_digits,
    NumberLanguage.CHINESE: chinese_digits,
}


@dataclass(slots=True)
class _Number:
    """Words `start` to `end` (exclusive) of a segment, which belong to one number."""

    start: int
    end: int
    texts: list[str]  # its number words, with those of earlier segments
    earlier: int  # of them in earlier segments
    finished: bool = False  # another word follows it
    alike: int = 0  # words such as "for" among its number words, which may be digits
    others_before: int = 0  # words between it and the number before that belong to neither

    @property
    def continues(self) -> bool:
        """Whether it began in an earlier segment."""
        return self.earlier > 0


@dataclass(slots=True)
class _Channel:
    """What is remembered of a channel's earlier segments."""

    texts: list[str] = field(default_factory=list)  # number words of the unfinished number
    until_s: float = 0.0  # end of its last word
    labels: dict[str, int] = field(default_factory=dict)  # and its number under each label
    run: DigitRun = field(default_factory=DigitRun)
    in_groups_s: set[float] = field(default_factory=set)  # starts of numbers that are masked with those after them
    partial: tuple[Sequence[Word], tuple[tuple[Word, ...], int]] | None = None  # since the last final: words, result


class Redactor:
    """Masks the words of one stream's channels. The segments of a channel must come in order."""

    def __init__(self, kinds: frozenset[Redaction], channels: int, language: NumberLanguage | None = None) -> None:
        """`kinds` has at least one element; `language` None: English."""
        self._kinds = kinds
        self._language = language = language or NumberLanguage.ENGLISH
        self._number_words = _WORDS[language]
        lengths = [SHORTEST[kind] for kind in kinds]
        self._shortest = min(lengths)
        self._shortest_long = min((length for length in lengths if length >= LONG), default=None)
        self._shortest_amount = min((length for length in lengths if length < LONG), default=None)
        self._announcements = Announcements(kinds, language)
        self._channels = [_Channel() for _ in range(channels)]
        self._looks_ahead = False
        self._counts: Counter[str] = Counter()  # numbers so far by label

    def partial(self, channel: int, words: Sequence[Word]) -> tuple[tuple[Word, ...], int]:
        """Return the words of an unfinished segment, and how many of them precede its first number.

        Every number is masked, because more digits may follow, and the last one is a NUMBER until it is finished; an
        unfinished last word that may become a number is left out. The same tuple of words, as in steps without a new
        word, is read once.
        """
        history = self._channels[channel]
        if history.partial is None or history.partial[0] is not words:
            history.partial = words, self._partial(history, words)
        return history.partial[1]

    def has_no_number(self, channel: int, words: Sequence[Word]) -> bool:
        """Whether words of an unfinished segment have no number, and no last word that may become one."""
        return self._partial(self._channels[channel], words)[0] == tuple(words)

    def _partial(self, history: _Channel, words: Sequence[Word]) -> tuple[tuple[Word, ...], int]:
        if words and self._number_words.may_become_number(words[-1].text):
            words = words[:-1]
        texts = [self._number_words.plain(word.text) for word in words]
        numbers = self._numbers(history, words, texts, wary=True)
        if not numbers:
            return tuple(words), len(words)
        labels = [self._label_so_far(history, number) for number in numbers]
        return self._masked(history, words, numbers, labels, Counter(self._counts)), numbers[0].start

    def final(self, channel: int, words: Sequence[Word]) -> tuple[Word, ...]:
        """Return the words of a finished segment, each masked number as one word."""
        for one in self._channels:
            one.partial = None  # later numbers have other places
        history, texts = self._channels[channel], [self._number_words.plain(word.text) for word in words]
        numbers = self._numbers(history, words, texts)
        masked = self._masked_of(history, words, texts, numbers)
        result = self._masked(history, words, masked, [self._label(history, one) for one in masked], self._counts)
        self._remember(history, words, texts, numbers)
        return result

    def recording(self, finals: Sequence[tuple[int, Sequence[Word]]]) -> list[tuple[Word, ...]]:
        """Return the words of all finals of a recording, given with their channels; call once, without `final`.

        The first groups of a number are masked too, since those after them are known.
        """
        ahead = Redactor(self._kinds, len(self._channels), self._language)
        ahead._looks_ahead = True
        for channel, words in finals:
            ahead.final(channel, words)
        for history, known in zip(self._channels, ahead._channels, strict=True):
            history.in_groups_s = known.in_groups_s
        return [self.final(channel, words) for channel, words in finals]

    def _numbers(
        self, history: _Channel, words: Sequence[Word], texts: Sequence[str], *, wary: bool = False
    ) -> list[_Number]:
        """Return the numbers of a segment in order; `wary` as in `parts`."""
        continues = bool(history.texts) and bool(words) and words[0].start_s - history.until_s < RUN_S
        numbers: list[_Number] = []
        current = _Number(0, 0, list(history.texts), len(history.texts)) if continues else None
        ordinals = Redaction.AGGRESSIVE in self._kinds
        alike = others = 0
        parts = self._number_words.parts(texts, in_number=continues, ordinals=ordinals, wary=wary)
        for at, part in enumerate(parts):
            if part is Part.NUMBER:
                if current is None:
                    current = _Number(0, 0, [], 0)
                if not current.end:
                    current.start, current.others_before = at, others
                    numbers.append(current)
                    alike = 0
                current.end = at + 1
                current.texts.append(texts[at])
                current.alike += alike
                alike = others = 0
            elif part is Part.LINK:
                alike += self._number_words.sounds_like_digit(texts[at])
            else:
                others += 1
                if current is not None:
                    current.finished = True
                    current = None
        return numbers

    def _masked_of(
        self, history: _Channel, words: Sequence[Word], texts: Sequence[str], numbers: Sequence[_Number]
    ) -> list[_Number]:
        """Return the numbers of a final that are masked; notes what its words announce and the digits of its runs."""
        announced = self._announcements.found(texts)
        waiting = list(announced)
        masked, run = set[int](), list[int]()  # places of numbers: all masked ones, those of the run of this final
        for index, number in enumerate(numbers):
            while waiting and waiting[0].at < number.start:
                self._announce(waiting.pop(0), words)
            following = texts[number.end : number.end + 2]
            before = texts[number.start - 1] if number.start else ""
            amount = number.finished and self._number_words.is_amount(number.texts, following, before)
            after = any(number.end <= one.at < number.end + WORDS_AFTER for one in announced)
            if self._masks(history, number, words, following, amount=amount, announced_after=after):
                masked.add(index)
            history.run.others += number.others_before
            in_run = None if amount else self._add_to_run(history, number, words)
            if in_run is not None:
                run = [*run, index] if len(history.run.starts_s) > 1 else [index]
                whole = len(self._digits_of(number)) > 1 or self._is_long(numbers[one] for one in run)
                masked.update(() if not in_run else run if whole else [index])
                if in_run and whole and self._looks_ahead:
                    history.in_groups_s.update(history.run.starts_s)
        for one in waiting:
            self._announce(one, words)
        return [numbers[index] for index in sorted(masked)]

    def _masks(
        self,
        history: _Channel,
        number: _Number,
        words: Sequence[Word],
        following: Sequence[str],
        *,
        amount: bool,
        announced_after: bool,
    ) -> bool:
        """Whether a number of a final is masked whatever other numbers are near it."""
        start_s, digits = words[number.start].start_s, self._digits_of(number)
        if number.continues or not number.finished or start_s in history.in_groups_s:
            return True
        if self._announcements.counts(start_s):
            return not self._number_words.counts_digits(number.texts, following)
        if amount:
            return self._shortest_amount is not None and len(digits) >= self._shortest_amount
        if self._announcements.waits(start_s) or (announced_after and len(digits) > 1):
            return True
        begin = digits[: max(1, len(digits) - 1)]  # "four one moment" repeats a four
        repeated = any(
            one.run.recent(start_s) and begin in one.run.digits for one in self._channels if one is not history
        )
        near_end = len(words) - number.end <= WORDS_TO_END[self._language]
        group = len(digits) > FIRST_DIGITS or (len(digits) >= GROUP and self._number_words.read_singly(number.texts))
        return len(digits) >= self._shortest or self._is_long([number]) or repeated or (group and near_end)

    def _is_long(self, numbers: Iterable[_Number]) -> bool:
        """Whether the digits of numbers, with words that may be misheard digits, are those of a long number."""
        digits = sum(len(self._digits_of(number)) + number.alike for number in numbers)
        return self._shortest_long is not None and digits >= self._shortest_long

    def _add_to_run(self, history: _Channel, number: _Number, words: Sequence[Word]) -> bool | None:
        """Add a number to the digits that count together; return whether that masks it, None if it stands alone."""
        start_s, end_s = words[number.start].start_s, words[number.end - 1].end_s
        said = self._number_words.digits_of(number.texts[number.earlier :])
        size = len(self._digits_of(number))
        own = size == 1 and self._shortest_long is None and number.others_before > 1  # "or room nine" with `numbers`
        masked = None if own else history.run.add(said, size, start_s, end_s, WORDS_BETWEEN[self._language])
        if masked is not None and (size >= GROUP or len(history.run.digits) >= SHORTEST[Redaction.PCI]):
            self._announcements.answered(end_s)
        if masked is not None and Redaction.PCI in self._kinds and len(history.run.digits) >= SHORTEST[Redaction.PCI]:
            self._announcements.announce(end_s)  # its expiry date and code
        return masked

    def _digits_of(self, number: _Number) -> str:
        return self._number_words.digits_of(number.texts)

    def _announce(self, one: Announcement, words: Sequence[Word]) -> None:
        self._announcements.announce(words[one.at].end_s, asked=one.asked)

    def _masked(
        self,
        history: _Channel,
        words: Sequence[Word],
        numbers: Sequence[_Number],
        labels: Sequence[str],
        counts: Counter[str],
    ) -> tuple[Word, ...]:
        """Return the words with each of these numbers as its label; new numbers are counted in `counts`."""
        result: list[Word] = []
        done = 0
        for number, label in zip(numbers, labels, strict=True):
            index = history.labels.get(label) if number.continues else None
            if index is None:
                counts[label] += 1
                index = counts[label]
            spoken = words[number.start : number.end]
            result += words[done : number.start]
            result.append(_placeholder(f"[{label}_{index}]", spoken))
            done = number.end
        return (*result, *words[done:])

    def _remember(
        self, history: _Channel, words: Sequence[Word], texts: Sequence[str], numbers: Sequence[_Number]
    ) -> None:
        """Keep the unfinished number at the end of a final, its labels, and how many words follow."""
        last = numbers[-1].end if numbers else 0
        history.run.others += self._number_words.parts(texts[last:], in_number=bool(numbers), ordinals=True).count(
            Part.OTHER
        )
        for number in numbers:
            label = self._label(history, number)
            if label == CARD:
                self._announcements.announce(words[number.end - 1].end_s)
            history.labels = history.labels if number.continues else {}
            history.labels.setdefault(label, self._counts[label])
        if numbers and not numbers[-1].finished:
            history.texts = numbers[-1].texts[-MAX_PARTS:]
            history.until_s = words[numbers[-1].end - 1].end_s
        elif numbers or Part.OTHER in self._number_words.parts(texts, in_number=True, ordinals=True):
            history.texts = []

    def _label(self, history: _Channel, number: _Number) -> str:
        if number.continues and CARD in history.labels:  # its expiry date and code may follow
            return CARD
        return label_of(self._digits_of(number), self._kinds, self._language)

    def _label_so_far(self, history: _Channel, number: _Number) -> str:
        """Return the label in an interim result: one of an unfinished number would change with every digit."""
        return self._label(history, number) if number.finished or number.continues else NUMBER


def _placeholder(text: str, words: Sequence[Word]) -> Word:
    """Return one word with the times of all, and the mark after the last one."""
    last = words[-1].text
    mark = last[-1] if last and last[-1] in _MARKS else ""
    confidence = sum(word.confidence for word in words) / len(words)
    return Word(text + mark, words[0].start_s, words[-1].end_s, confidence, words[-1].language, words[0].speaker)
