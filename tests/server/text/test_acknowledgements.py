"""Texts that only acknowledge, in the spellings of models with and without marks."""

from __future__ import annotations

import pytest

from model.ctc.words import Word
from server.text.acknowledgements import may_acknowledge, only_acknowledges


def words(text: str, *, marked: bool = False) -> list[Word]:
    return [Word(each, 0.0, 0.1, 0.9, acknowledges=marked) for each in text.split()]


@pytest.mark.parametrize(
    "text",
    ["uh huh", "Uh-huh.", "mm-hmm", "yeah", "Yeah, yeah.", "okay", "OK!", "oh okay i see", "All right.", "嗯", "嗯 嗯",
     "好的。", "哦 好的", "知道了"],
)  # fmt: skip
def test_acknowledgements_are_found(text: str) -> None:
    assert only_acknowledges(words(text))


@pytest.mark.parametrize(
    "text",
    ["", "yes", "no", "right", "sure", "okay then call me", "yeah i want two", "oh no", "mmm hmmm yes", "okra",
     "ohio", "yeahs", "i see it", "all rights", "okay " * 9, "好", "好的吗", "对", "嗯我要两个", "。"],
)  # fmt: skip
def test_other_texts_are_not(text: str) -> None:
    assert not only_acknowledges(words(text))


@pytest.mark.parametrize(
    ("text", "may"),
    [("", True), ("uh", True), ("o", True), ("i", True), ("okay i", True), ("uh huh", True), ("好", True),
     ("嗯 知", True), ("i want", False), ("okay then", False), ("yes", False), ("对", False), ("uh two", False)],
)  # fmt: skip
def test_a_beginning_may_become_one(text: str, *, may: bool) -> None:
    assert may_acknowledge(words(text)) is may


def test_words_that_are_marked_by_their_sound_acknowledge_whatever_their_text_is() -> None:
    assert only_acknowledges([*words("but what", marked=True), *words("okay")])
    assert not only_acknowledges([*words("but what", marked=True), *words("stop")])
    assert may_acknowledge([*words("but", marked=True), *words("o")])
