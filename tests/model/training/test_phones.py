"""Phones as a second target: espeak-ng's pronunciations."""

import pytest
from needs import need_programs

from model.errors import TrainingError
from model.training import phones
from model.training.phones import SIMPLER, STRESS, Pronunciations, pronounce


def test_words_that_sound_alike_have_the_same_phones_and_others_differ():
    need_programs("espeak-ng")
    spoken = Pronunciations.of(["to sea", "two see", "don't"])
    assert spoken.target("two see") == spoken.target("to sea")
    assert spoken.target("see") != spoken.target("don't")
    assert all(1 <= phone <= len(spoken.phones) for phone in spoken.target("two see don't"))


def test_a_missing_espeak_is_named_in_the_error(monkeypatch):
    monkeypatch.setattr(phones, "SPEAK", ("no-such-program",))
    with pytest.raises(TrainingError, match="espeak-ng"):
        Pronunciations.of(["a word"])


def test_phones_that_are_rare_are_written_by_more_frequent_ones_without_stress():
    need_programs("espeak-ng")
    spoken = pronounce(["a", "bird", "button", "fire", "north", "about"])
    found = {phone for sounds in spoken.values() for phone in sounds}
    assert not found & set(SIMPLER)
    assert not any(ord(mark) in STRESS for phone in found for mark in phone)
    assert spoken["a"] == ("ə",), "the article, not the letter's name"
    assert spoken["fire"] == ("f", "aɪ", "ɚ")


def test_no_words_are_pronounced_without_espeak(monkeypatch):
    monkeypatch.setattr(phones, "SPEAK", ("no-such-program",))
    assert pronounce([]) == {}
