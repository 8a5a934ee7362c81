"""Written English as labelled words: which marks remain, which capitals, and what a line of text reads as."""

from __future__ import annotations

import pytest

from model.punctuation.marks import Names, labelled, parse, read, written


def simplified(text: str) -> str:
    names, words = Names(), read(text)
    names.count(words)
    return written(labelled(words, names))


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
def test_marks_become_three_and_words_are_spelled_as_recognised(text: str, expected: str) -> None:
    assert simplified(text) == expected


def test_a_quotation_begins_with_a_capital_only_if_its_word_is_a_name() -> None:
    assert simplified("He said, “Rose has come.” I saw Rose.") == "He said, Rose has come. I saw Rose."
    assert simplified("He said, “A rose has come.” I saw a rose.") == "He said, a rose has come. I saw a rose."


def test_what_is_written_is_read_again() -> None:
    line = "Yes, he said. Is it I? No."
    words = parse(line)
    assert written(words) == line
    assert [word.word for word in words] == ["yes", "he", "said", "is", "it", "i", "no"]
