"""Written English as labeled words: marks, capitals, and parsing of a line."""

from __future__ import annotations

import pytest

from model.punctuation.marks import Names, labeled, parse, read, written


def simplified(text: str) -> str:
    names, words = Names(), read(text)
    names.count(words)
    return written(labeled(words, names))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“Where?” he asked.", "Where, he asked."),
        ("“Go!” He went.", "Go. He went."),
        ("It was late; he went home.", "It was late. He went home."),
        ("It was late; and he went home.", "It was late, and he went home."),
        ("Two things: sleep, and food—above all food.", "Two things, sleep, and food, above all food."),
        ("She said: “You’ll find it.” “Why?”", "She said, you'll find it. Why?"),
        ("“But I—” He left…", "But I. He left."),
        ("He is twenty-one, an Anglo-Saxon of 1984.", "He is twenty one, an Anglo Saxon of nineteen eighty four."),
        ("‘Tis the boys’ hour", "Tis the boys hour."),
        ("Well … perhaps", "Well, perhaps."),
    ],
)
def test_marks_are_reduced_to_three_and_words_spelled_as_recognized(text: str, expected: str) -> None:
    assert simplified(text) == expected


def test_the_first_word_of_a_quotation_is_capitalized_only_if_it_is_a_name() -> None:
    assert simplified("He said, “Rose has come.” I saw Rose.") == "He said, Rose has come. I saw Rose."
    assert simplified("He said, “A rose has come.” I saw a rose.") == "He said, a rose has come. I saw a rose."


def test_written_lines_can_be_parsed() -> None:
    line = "Yes, he said. Is it I? No."
    words = parse(line)
    assert written(words) == line
    assert [word.word for word in words] == ["yes", "he", "said", "is", "it", "i", "no"]
