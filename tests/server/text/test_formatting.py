"""Formatting: capitals, punctuation and digits, and its invariants."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.words import Word, joined
from server.text.formatting import ALPHANUMERIC, PLAIN, Sentences, Style, format_words
from server.text.line import PAUSE_S

SMART = Style(punctuate=True, numerals=True)
PUNCTUATE = Style(punctuate=True)
NUMERALS = Style(numerals=True)
CODES = SMART.with_grammar(ALPHANUMERIC)


def say(text: str, gap_s: float = 0.05) -> list[Word]:
    """Return the words of a text, each 0.2 s long."""
    return [Word(w, i * (0.2 + gap_s), i * (0.2 + gap_s) + 0.2, 0.5 + i / 1_000) for i, w in enumerate(text.split())]


def shown(text: str, style: Style) -> str:
    return " ".join(f.text for f in format_words(say(text), style))


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (PLAIN, "what are you twenty one", "what are you twenty one"),
        (PUNCTUATE, "turn the heating down", "Turn the heating down."),
        (PUNCTUATE, "well i think i'm late and in time", "Well I think I'm late and in time."),
        (PUNCTUATE, "'tis late", "'Tis late."),
        (PUNCTUATE, "yes", "Yes."),
        (PUNCTUATE, "what is the time", "What is the time?"),
        (PUNCTUATE, "how many are there", "How many are there?"),
        (PUNCTUATE, "where's my hat", "Where's my hat?"),
        (PUNCTUATE, "is it late", "Is it late?"),
        (PUNCTUATE, "can you hear me", "Can you hear me?"),
        (PUNCTUATE, "do you hear", "Do you hear?"),
        (PUNCTUATE, "do the dishes", "Do the dishes."),
        (PUNCTUATE, "have a nice day", "Have a nice day."),
        (PUNCTUATE, "when i get home i sleep", "When I get home I sleep."),
        (PUNCTUATE, "what a day", "What a day."),
        (NUMERALS, "twenty one people", "21 people"),
        (NUMERALS, "i have one dog", "i have one dog"),
        (NUMERALS, "one two three", "123"),
        (NUMERALS, "three point one four", "3.14"),
        (NUMERALS, "the twenty first century", "the 21st century"),
        (SMART, "one hundred and five people came", "105 people came."),
        (SMART, "it costs twenty", "It costs 20."),
        (CODES, "b as in bravo four two", "B42"),
        (CODES, "b for boy forty two oh dash double x triple seven", "B420-XX777"),
        (CODES, "x ray x as in x ray yankee [NUMBER_1] nine", "XXY[NUMBER_1]9"),
        (PUNCTUATE.with_grammar(ALPHANUMERIC), "bravo four", "bravo four"),
    ],
)
def test_formatted_text(style: Style, text: str, expected: str) -> None:
    assert shown(text, style) == expected


def test_a_number_lasts_from_its_first_word_to_its_last_and_keeps_the_words() -> None:
    words = say("about twenty one people")
    about, number, people = format_words(words, NUMERALS)
    assert (number.word.text, number.text) == ("twenty one", "21")
    assert (number.word.start_s, number.word.end_s) == (words[1].start_s, words[2].end_s)
    assert words[1].confidence < number.word.confidence < words[2].confidence
    assert (about.word, people.word) == (words[0], words[3])


def test_pause_separates_numbers() -> None:
    assert [f.text for f in format_words(say("twenty five", gap_s=0.1), NUMERALS)] == ["25"]
    assert [f.text for f in format_words(say("twenty five", gap_s=PAUSE_S + 0.01), NUMERALS)] == ["20", "5"]


def test_sentence_continues_after_a_cut() -> None:
    sentences = Sentences(SMART)
    cut = sentences.final(say("is it true that"), ends=False)
    rest = sentences.final(say("you came"), ends=True)
    after = sentences.final(say("yes"), ends=True)
    texts = [" ".join(f.text for f in part) for part in (cut, rest, after)]
    assert texts == ["Is it true that", "you came?", "Yes."]


def test_a_partial_has_no_final_mark_and_no_digits() -> None:
    sentences = Sentences(SMART)
    assert [f.text for f in sentences.partial(say("i saw twenty one"))] == ["I", "saw", "twenty", "one"]


def _in_order(rows: list[tuple[str, float, float, float]]) -> list[Word]:
    words, now_s = [], 0.0
    for text, gap_s, length_s, confidence in rows:
        words.append(Word(text, now_s + gap_s, now_s + gap_s + length_s, confidence))
        now_s = words[-1].end_s
    return words


numbers = st.sampled_from(
    [
        *("one", "two", "twenty", "nineteen", "hundred", "thousand", "million", "hundreds", "and", "point", "first"),
        *("oh", "half", "a", "double", "dollars", "pounds", "cents", "percent", "at", "p", "m", "dot", "com", "slash"),
        *("march", "dash", "minus", "quarters", "main", "street", "number", "一", "十", "点", "月"),
    ]
)
texts = st.one_of(
    numbers, st.text("abcdefghijklmnopqrstuvwxyz'", min_size=1, max_size=6), st.text(min_size=1, max_size=3)
)
recognized = st.lists(st.tuples(texts, st.floats(0, 2), st.floats(0, 1), st.floats(0, 1)), max_size=12).map(_in_order)
styles = st.builds(Style, st.booleans(), st.booleans(), english=st.booleans())


@settings(max_examples=300)
@given(recognized, styles, st.booleans())
def test_formatting_never_raises_loses_a_word_or_a_second(words: list[Word], style: Style, ends: bool) -> None:
    formatted = format_words(words, style, ends=ends)
    assert len(formatted) <= len(words)
    assert "".join(f.word.text for f in formatted).replace(" ", "") == "".join(w.text for w in words).replace(" ", "")
    starts = {w.start_s for w in words}
    stops = {w.end_s for w in words}
    for f in formatted:
        assert f.word.start_s in starts
        assert f.word.end_s in stops
        assert 0 <= f.word.confidence <= 1
        assert f.text
    for before, after in pairwise(formatted):
        assert before.word.end_s <= after.word.start_s


@settings(max_examples=100)
@given(recognized)
def test_without_a_style_nothing_changes(words: list[Word]) -> None:
    assert [(f.word, f.text) for f in format_words(words)] == [(w, w.text) for w in words]


@settings(max_examples=200)
@given(recognized, styles, st.integers(0, 12))
def test_the_words_of_a_partial_stay_when_others_follow(words: list[Word], style: Style, count: int) -> None:
    sentences = Sentences(style)
    fewer, more = sentences.partial(words[:count]), sentences.partial(words)
    assert more[: len(fewer)] == fewer


@settings(max_examples=200)
@given(recognized, styles, st.booleans())
def test_a_partial_is_formatted_by_the_rules_alone(words: list[Word], style: Style, begins: bool) -> None:
    sentences = Sentences(style)
    sentences.opening = () if begins else ("i'm",)
    expected = format_words(words, replace(style, numerals=False), sentences.opening, ends=False)
    assert sentences.partial(words) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # digits spoken one by one are one number and not added
        ("call five five five one two three four", "call 555-1234"),
        ("zero zero seven", "007"),
        ("seven seven zero zero nine hundred", "7700 900"),
        ("room two oh five please", "room 205 please"),
        ("one o one", "101"),
        ("nine one one", "911"),
        ("twenty one two three", "21 23"),
        ("four five six thousand", "45 6000"),
        ("three point one four one five", "3.1415"),
        # "oh" is a zero only between digits
        ("oh no", "oh no"),
        ("oh two", "oh two"),
        ("one two three oh wait", "123 oh wait"),
        # ... and at an end of a row of three or more
        ("oh oh seven", "007"),
        ("oh seven nine double one", "07911"),
        ("my number is oh seven seven double oh nine triple four", "my number is 077009444"),
        ("call five five oh", "call 550"),
        ("double oh seven", "007"),
        ("a double one", "a double one"),
        ("double trouble and treble clef", "double trouble and treble clef"),
        ("i have five oh no", "i have 5 oh no"),
        ("at five o clock", "at 5 o clock"),
        # years
        ("in nineteen eighty four and later", "in 1984 and later"),
        ("twenty twenty six", "2026"),
        ("from nineteen oh five to seventeen ninety", "from 1905 to 1790"),
        ("nineteen hundred and five", "1905"),
        ("two thousand and ten", "2010"),
        ("twenty one twenty two", "21 22"),
        ("eighteen nineteen twenty", "18 19 20"),
        ("twelve thirty", "12 30"),
        # ordinals and fractions
        ("the ninth of november", "the 9th of november"),
        ("first of all wait a second", "first of all wait a second"),
        ("a third of it", "a third of it"),
        ("two thirds of one fifth", "two thirds of one fifth"),
        # powers of ten without a count
        ("hundreds of people", "hundreds of people"),
        ("a hundred and five people", "105 people"),
        ("half a million", "half a million"),
        ("a few hundred", "a few hundred"),
        # small numbers without another one
        ("one by one or two or three", "one by one or two or three"),
        ("four of them", "4 of them"),
        ("one and two", "one and two"),
        ("one and two and three", "one and two and three"),
        ("two and five", "two and 5"),
        ("between two and three hours", "between two and three hours"),
        ("one hundred and two", "102"),
        ("one point five", "1.5"),
        # several points
        ("version one point two point three", "version 1.2.3"),
        ("ten point zero point one", "10.0.1"),
        ("one ninety two point one sixty eight point one point twenty", "192.168.1.20"),
        ("the point is one point two", "the point is 1.2"),
        # "second" is a unit of time, or the end of an ordinal
        ("a thirty second timer", "a 30 second timer"),
        ("thirty second intervals", "30 second intervals"),
        ("the thirty second timer", "the 30 second timer"),
        ("a one hundred and twenty second delay", "a 120 second delay"),
        ("thirty seconds", "30 seconds"),
        ("the thirty second of july", "the 32nd of july"),
        ("december twenty second", "december 22nd"),
        ("the twenty second", "the 22nd"),
        ("forty second street", "42nd street"),
        ("the twenty second time", "the 22nd time"),
    ],
)
def test_which_words_are_numbers(text: str, expected: str) -> None:
    assert shown(text, NUMERALS) == expected


def test_pause_separates_the_parts_of_a_year_and_digits() -> None:
    for text, expected in (("nineteen eighty", "19 80"), ("five oh two", "5 oh two")):
        assert [f.text for f in format_words(say(text, gap_s=PAUSE_S + 0.01), NUMERALS)] == expected.split()


def test_chinese_ends_with_its_own_mark() -> None:
    words = [Word(character, 0.1 * i, 0.1 * i + 0.1, 1.0) for i, character in enumerate("今天很好")]
    formatted = format_words(words, Style(punctuate=True, english=False))
    assert joined(word.text for word in formatted) == "今天很好。"
    assert joined(["今天很好。", "明天"]) == "今天很好。明天"
