"""Numbers written out in words are written as themselves or stay words, alone and among other words."""

from __future__ import annotations

import time
import timeit
from collections.abc import Iterable
from functools import partial
from random import Random

import pytest

from model.ctc.words import Word, joined
from server.text.formatting import Style, format_words
from tests.server.text.spoken_numbers import Spoken, english, mandarin

BEFORE = (
    "i said", "it was", "we have", "the total for him is", "and then", "about", "they want", "it costs", "because",
    "she is", "for", "to", "of", "on", "please take", "with", "or", "no", "well", "over", "up to", "wait a second",
    "one of us got", "hundreds of them",
)  # fmt: skip
AFTER = (
    "please", "people", "of them", "thanks", "is what i said", "or so", "to go", "for me", "on the list", "per day",
    "that is it", "miles", "a day", "years ago", "at home", "or more", "but not now", "for a second",
)  # fmt: skip
CHINESE = ("我要", "一共是", "大概有", "他说", "这里有", ""), ("左右", "的样子", "吧", "就可以了", "")
COUNT = 3_500
NIGHTLY = 200_000


def words_of(said: str) -> list[Word]:
    texts = said.split() if said.isascii() else list(said)
    return [Word(text, i * 0.25, i * 0.25 + 0.2, 0.9) for i, text in enumerate(texts)]


def written(said: str) -> str:
    """Return words with their numbers in digits; no word or time may be lost."""
    words = words_of(said)
    formatted = format_words(words, Style(numerals=True, english=said.isascii()))
    assert "".join(each.word.text for each in formatted).replace(" ", "") == said.replace(" ", "")
    assert (formatted[0].word.start_s, formatted[-1].word.end_s) == (words[0].start_s, words[-1].end_s)
    return joined(each.text for each in formatted)


def among(numbers: Iterable[Spoken], seed: int, before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, str]:
    """Return what was written otherwise than a number's forms or its words, between other words."""
    random, wrong = Random(seed), {}
    for said, forms in numbers:
        first, last = random.choice(before), random.choice(after)
        space = " " if said.isascii() else ""
        found = written(space.join(filter(None, (first, said, last))))
        if found not in {space.join(filter(None, (first, form, last))) for form in {said, *forms}}:
            wrong[f"{first}|{said}|{last}"] = found
    return wrong


def test_an_english_number_is_written_as_itself_or_left_in_words() -> None:
    said = list(english(1, COUNT))
    assert among(said, 1, ("",), ("",)) == {}
    left = [words for words, _ in said if written(words) == words]
    assert len(left) < COUNT / 50, "otherwise the check above would pass if nothing was ever written"


def test_words_around_an_english_number_stay() -> None:
    assert among(english(2, COUNT), 2, BEFORE, AFTER) == {}


def test_a_mandarin_number_is_written_as_itself_or_left_in_words() -> None:
    said = list(mandarin(1, COUNT))
    assert among(said, 1, ("",), ("",)) == {}
    assert among(said, 2, *CHINESE) == {}
    left = [words for words, forms in said if forms and written(words) == words]
    assert len(left) < COUNT / 50


@pytest.mark.parametrize(
    "piece", ["two hundred ", "one pound ", "twenty one and ", "a one ", "two million or ", "one dot "]
)
def test_time_is_linear_in_the_words(piece: str) -> None:
    """Of a final that repeats a piece, four times as long: a quadratic search would take 16 times as long."""
    times_s = []
    for count in (1_000, 4_000):
        words = words_of((piece * count).strip())
        format_all = partial(format_words, words, Style(numerals=True))
        times_s.append(min(timeit.repeat(format_all, timer=time.thread_time, number=1, repeat=3)))
    assert times_s[1] < 10 * times_s[0]


@pytest.mark.release
@pytest.mark.timeout(1_200)
def test_many_numbers_in_both_languages() -> None:
    assert among(english(4, NIGHTLY), 4, BEFORE, AFTER) == {}
    assert among(mandarin(4, NIGHTLY), 4, *CHINESE) == {}
