"""Alignment of letters and phones, and the rules learned from it."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.lexicon.letter_to_sound import LetterToSound, RuleError
from tutti_asr_lab.training.lexicon.alignment import MOST, align

SAID = {
    "cat": "k æ t", "can": "k æ n", "cent": "s ɛ n t", "city": "s ɪ t i", "act": "æ k t", "tan": "t æ n",
    "face": "f eɪ s", "ace": "eɪ s", "fact": "f æ k t", "fat": "f æ t", "tax": "t æ k s", "ten": "t ɛ n",
    "fate": "f eɪ t", "net": "n ɛ t", "nice": "n aɪ s", "tin": "t ɪ n", "fit": "f ɪ t", "cite": "s aɪ t",
}  # fmt: skip
WORDS = {word: tuple(phones.split()) for word, phones in SAID.items()}
SPOKEN = st.dictionaries(
    st.text("ab'", min_size=1, max_size=4), st.lists(st.sampled_from("xyz"), max_size=6).map(tuple), min_size=1
)


def test_each_letter_is_aligned_with_its_phones() -> None:
    aligned = align(WORDS)
    assert aligned["cat"] == (("k",), ("æ",), ("t",))
    assert aligned["tax"] == (("t",), ("æ",), ("k", "s"))
    assert aligned["face"] == (("f",), ("eɪ",), ("s",), ())


@given(SPOKEN)
def test_alignments_keep_all_phones_in_order_with_at_most_two_per_letter(words: dict[str, tuple[str, ...]]) -> None:
    aligned = align(words)
    assert aligned.keys() == {word for word, phones in words.items() if len(phones) <= MOST * len(word)}
    for word, parts in aligned.items():
        assert len(parts) == len(word)
        assert all(len(part) <= MOST for part in parts)
        assert tuple(chain.from_iterable(parts)) == words[word]


@given(SPOKEN)
def test_training_words_are_pronounced_as_learned(words: dict[str, tuple[str, ...]]) -> None:
    """Contexts distinguish words of up to five letters."""
    aligned = align(words)
    rules = LetterToSound.learn(aligned)
    assert all(rules.pronounce(word) == words[word] for word in aligned)


def test_the_longest_context_decides_for_an_unknown_word() -> None:
    rules = LetterToSound.learn(align(WORDS))
    assert rules.pronounce("canit") == ("k", "æ", "n", "ɪ", "t")
    assert rules.pronounce("cen") == ("s", "ɛ", "n")
    assert rules.pronounce("ice") == ("aɪ", "s")


def test_rules_do_not_depend_on_the_order_of_the_words() -> None:
    backwards = dict(reversed(WORDS.items()))
    assert LetterToSound.learn(align(WORDS)).lines() == LetterToSound.learn(align(backwards)).lines()


def test_rules_are_read_as_they_were_written() -> None:
    rules = LetterToSound.learn(align(WORDS))
    phones = tuple(sorted(set(chain.from_iterable(WORDS.values()))))
    assert LetterToSound.parse(rules.lines(), phones) == rules


def test_a_context_with_the_phones_of_the_shorter_one_is_left_out() -> None:
    rules = LetterToSound.learn({"ab": (("x",), ("y",)), "ac": (("x",), ("z",))})
    assert rules.lines() == ["a\tx", "b\ty", "c\tz"]


@pytest.mark.parametrize("line", ["b", "a\tx", "b\tw"])
def test_the_error_has_the_number_of_a_line_that_is_not_a_rule(line: str) -> None:
    with pytest.raises(RuleError) as error:
        LetterToSound.parse(["a\tx", line], ("x", "y"))
    assert error.value.line == 1
