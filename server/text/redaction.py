"""Redaction of numbers in recognized words: `redact=pci` and so on, in English and Mandarin. Pure.

A number is all number words that follow one another, also over several segments. What is masked does not depend on
checksums, because one misrecognized digit would break them: a number is masked if it is as long as the requested kinds
are, if more digits may follow, or if it follows words such as "card". Checksums only choose the label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from model.ctc.words import Word
from server.text import chinese_digits, spoken_digits
from server.text.number_labels import CARD, NUMBER, label_of
from server.text.redaction_kinds import SHORTEST, NumberLanguage, Redaction
from server.text.spoken_digits import Part

CONTEXT_S = 60.0  # after "card", "security code" or a card number: its expiry date and code are short numbers
UNFINISHED_S = 30.0  # longest pause inside a number that is read in parts
MAX_BETWEEN = 3  # words between two parts of a long number that was misrecognized, without words such as "and"
LONG = 7  # digits of a long number
MAX_PARTS = 64  # number words kept of an unfinished number

_CONTEXT = {
    Redaction.PCI: {"card", "cards", "credit", "cvc", "cvv", "debit", "expiration", "expires", "expiry", "security"},
    Redaction.SSN: {"security", "social", "ssn"},
}
_CHINESE_CONTEXT = {
    Redaction.PCI: {"卡", "安全码", "校验码", "验证码", "有效期", "密码"},
    Redaction.SSN: {"身份证", "证件"},
}
_LONGEST = 3  # words of a context in Mandarin, a character each
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
    continues: bool  # a number of an earlier segment
    finished: bool = False  # another word follows it
    alike: int = 0  # words such as "for" among its number words, which may be digits
    others_before: int = 0  # words between it and the number before that belong to neither


@dataclass(slots=True)
class _Channel:
    """What is remembered of a channel's earlier segments."""

    texts: list[str] = field(default_factory=list)  # number words of the unfinished number
    until_s: float = 0.0  # end of its last word
    labels: dict[str, int] = field(default_factory=dict)  # and its number under each label
    partial: tuple[Sequence[Word], tuple[tuple[Word, ...], int]] | None = None  # since the last final: words, result


class Redactor:
    """Masks the words of one stream's channels. The segments of a channel must come in order."""

    def __init__(self, kinds: frozenset[Redaction], channels: int, language: NumberLanguage | None = None) -> None:
        """`kinds` has at least one element; `language` None: English."""
        self._kinds = kinds
        self._language = language = language or NumberLanguage.ENGLISH
        self._number_words = _WORDS[language]
        self._shortest = min(SHORTEST[kind] for kind in kinds)
        self._shortest_long = min((SHORTEST[kind] for kind in kinds if SHORTEST[kind] >= LONG), default=None)
        self._context = frozenset[str]().union(*(_CONTEXT.get(kind, ()) for kind in kinds))
        phrases = _CHINESE_CONTEXT if language is NumberLanguage.CHINESE else {}
        self._phrases = tuple(sorted({phrase for kind in kinds for phrase in phrases.get(kind, ())}))
        self._channels = [_Channel() for _ in range(channels)]
        self._context_until_s = -1.0  # of all channels: one side asks, the other one answers
        self._counts: Counter[str] = Counter()  # numbers so far by label

    def partial(self, channel: int, words: Sequence[Word]) -> tuple[tuple[Word, ...], int]:
        """Return the words of an unfinished segment, and how many of them precede its first number.

        Every number is masked, because more digits may follow, and the last one is a NUMBER until it is finished; an
        unfinished last word that may become a number is left out. The same tuple of words, as in steps without a new
        word, is read once.
        """
        here = self._channels[channel]
        if here.partial is None or here.partial[0] is not words:
            here.partial = words, self._partial(here, words)
        return here.partial[1]

    def _partial(self, here: _Channel, words: Sequence[Word]) -> tuple[tuple[Word, ...], int]:
        if words and self._number_words.may_become_number(words[-1].text):
            words = words[:-1]
        texts = [self._number_words.plain(word.text) for word in words]
        numbers = self._numbers(here, words, texts, wary=True)
        if not numbers:
            return tuple(words), len(words)
        labels = [self._label_so_far(here, number) for number in numbers]
        return self._masked(here, words, numbers, labels, Counter(self._counts)), numbers[0].start

    def final(self, channel: int, words: Sequence[Word]) -> tuple[Word, ...]:
        """Return the words of a finished segment, each masked number as one word."""
        for one in self._channels:
            one.partial = None  # later numbers have other places
        here, texts = self._channels[channel], [self._number_words.plain(word.text) for word in words]
        numbers = self._numbers(here, words, texts)
        nearby = self._digits_nearby(numbers)
        masked = [one for one, digits in zip(numbers, nearby, strict=True) if self._masks(one, digits, words, texts)]
        shown = self._masked(here, words, masked, [self._label(here, one) for one in masked], self._counts)
        self._remember(here, words, texts, numbers)
        return shown

    def _numbers(
        self, here: _Channel, words: Sequence[Word], texts: Sequence[str], *, wary: bool = False
    ) -> list[_Number]:
        """Return the numbers of a segment in order; `wary` as in `parts`."""
        continues = bool(here.texts) and bool(words) and words[0].start_s - here.until_s < UNFINISHED_S
        found: list[_Number] = []
        current = _Number(0, 0, list(here.texts), continues=True) if continues else None
        ordinals = Redaction.AGGRESSIVE in self._kinds
        alike = others = 0
        parts = self._number_words.parts(texts, in_number=continues, ordinals=ordinals, wary=wary)
        for at, part in enumerate(parts):
            if part is Part.NUMBER:
                if current is None:
                    current = _Number(0, 0, [], continues=False)
                if not current.end:
                    current.start, current.others_before = at, others
                    found.append(current)
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
        return found

    def _masks(self, number: _Number, nearby: int, words: Sequence[Word], texts: Sequence[str]) -> bool:
        """Whether a number of a final is masked; notes words that announce it. `nearby` as `_digits_nearby` counts."""
        for at in range(number.start):
            if self._announces(texts, at):
                self._announce(words[at].end_s)
        if number.continues or not number.finished or words[number.start].start_s < self._context_until_s:
            return True
        if self._shortest_long is not None and nearby >= self._shortest_long:
            return True
        return self._digits_of(number) >= self._shortest

    def _digits_of(self, number: _Number) -> int:
        return len(self._number_words.digits_of(number.texts))

    def _digits_nearby(self, numbers: Sequence[_Number]) -> list[int]:
        """Return for each number its digits and those nearby: a misrecognized word splits a card number."""
        counts: list[int] = []
        total = begin = 0
        for at, number in enumerate(numbers):
            if number.others_before > MAX_BETWEEN:
                total, begin = 0, at
            total += self._digits_of(number) + number.alike
            counts[begin:] = [total] * (at + 1 - begin)
        return counts

    def _announces(self, texts: Sequence[str], at: int) -> bool:
        """Whether a word, or the words up to it, announce a number."""
        if texts[at] in self._context:
            return True
        return bool(self._phrases) and "".join(texts[max(0, at + 1 - _LONGEST) : at + 1]).endswith(self._phrases)

    def _announce(self, end_s: float) -> None:
        self._context_until_s = max(self._context_until_s, end_s + CONTEXT_S)

    def _masked(
        self,
        here: _Channel,
        words: Sequence[Word],
        numbers: Sequence[_Number],
        labels: Sequence[str],
        counts: Counter[str],
    ) -> tuple[Word, ...]:
        """Return the words with each of these numbers as its label; new numbers are counted in `counts`."""
        shown: list[Word] = []
        done = 0
        for number, label in zip(numbers, labels, strict=True):
            index = here.labels.get(label) if number.continues else None
            if index is None:
                counts[label] += 1
                index = counts[label]
            spoken = words[number.start : number.end]
            shown += words[done : number.start]
            shown.append(_placeholder(f"[{label}_{index}]", spoken))
            done = number.end
        return (*shown, *words[done:])

    def _remember(
        self, here: _Channel, words: Sequence[Word], texts: Sequence[str], numbers: Sequence[_Number]
    ) -> None:
        """Keep the unfinished number at the end of a final, and what its words announce."""
        for at, word in enumerate(words):
            if self._announces(texts, at):
                self._announce(word.end_s)
        for number in numbers:
            label = self._label(here, number)
            if label == CARD:
                self._announce(words[number.end - 1].end_s)
            here.labels = here.labels if number.continues else {}
            here.labels.setdefault(label, self._counts[label])
        if numbers and not numbers[-1].finished:
            here.texts = numbers[-1].texts[-MAX_PARTS:]
            here.until_s = words[numbers[-1].end - 1].end_s
        elif numbers or Part.OTHER in self._number_words.parts(texts, in_number=True, ordinals=True):
            here.texts = []

    def _label(self, here: _Channel, number: _Number) -> str:
        if number.continues and CARD in here.labels:  # its expiry date and code may follow
            return CARD
        return label_of(self._number_words.digits_of(number.texts), self._kinds, self._language)

    def _label_so_far(self, here: _Channel, number: _Number) -> str:
        """Return the label in an interim result: one of an unfinished number would change with every digit."""
        return self._label(here, number) if number.finished or number.continues else NUMBER


def _placeholder(text: str, words: Sequence[Word]) -> Word:
    """Return one word with the times of all, and the mark after the last one."""
    last = words[-1].text
    mark = last[-1] if last and last[-1] in _MARKS else ""
    confidence = sum(word.confidence for word in words) / len(words)
    return Word(text + mark, words[0].start_s, words[-1].end_s, confidence)
