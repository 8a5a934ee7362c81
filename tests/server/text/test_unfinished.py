"""Words after which the end of a turn waits, and words after which it does not."""

from __future__ import annotations

import pytest

from server.text.redaction_kinds import NumberLanguage
from server.text.unfinished import WAIT_S, wait_s

ENGLISH, CHINESE = NumberLanguage.ENGLISH, NumberLanguage.CHINESE


@pytest.mark.parametrize(
    "text",
    ["my number is", "My number is, uh,", "my number is two oh", "two oh six", "nine one nine six eight five",
     "five five five twenty two", "it's 415-55", "four double", "the card is " + "four " * 12,
     "my pin is one two three", "code four two", "j o h n", "it's spelled", "b as in bravo", "B as in", "b for boy",
     "four b two", "the account number is x k four", "four one five dash", "six seven uh"],
)  # fmt: skip
def test_the_end_waits_inside_a_number_or_a_name(text: str) -> None:
    assert wait_s(text.split(), ENGLISH) == WAIT_S


@pytest.mark.parametrize(("digits", "waits_s"), [(6, WAIT_S), (7, 1.0), (8, 1.0), (9, 0.5), (10, 0.0), (11, 0.0)])
def test_it_waits_less_for_the_last_digits_of_a_long_number_as_some_may_have_been_missed(
    digits: int, waits_s: float
) -> None:
    assert wait_s(["four"] * digits, ENGLISH) == waits_s


def test_words_among_digits_count_as_digits_that_were_misheard() -> None:
    text = "six to eight five in six four to three one"
    assert wait_s(text.split(), ENGLISH) == 0.0


@pytest.mark.parametrize(
    "text",
    ["", "two", "this one", "no one", "twenty five", "nineteen eighty four", "one twenty two", "at eight oh five",
     "call nine one one", "nine one nine six eight five six zero one nine", "4155552671", "vitamin c", "the u s a",
     "at three p m", "i", "got a b", "and i", "plan b", "two hundred and five", "two or three", "what is that",
     "the motive is no four to six", "the ships only found one nine",
     "the card is " + "four " * 16, "my pin is one two three four", "nine one one nine please", "number"],
)  # fmt: skip
def test_it_does_not_wait_after_other_words(text: str) -> None:
    assert wait_s(text.split(), ENGLISH) == 0.0


@pytest.mark.parametrize(
    ("text", "waits"),
    [("我的号码是", True), ("一三八零零", True), ("号码是一", True), ("一三八零零一三八零零零", False),
     ("密码是一二三", True), ("密码是一二三四五六", False), ("星期一", False), ("三百", False), ("你好", False),
     ("one two three", True)],
)  # fmt: skip
def test_mandarin_has_numbers_of_its_own(text: str, *, waits: bool) -> None:
    texts = text.split() if text.isascii() else list(text)
    assert (wait_s(texts, CHINESE) == WAIT_S) is waits
