"""Pronunciation by espeak-ng, reduced to the phones that a network can learn."""

import pytest

from model.errors import TrainingError
from tests.support.needs import need_programs
from tutti_asr_lab.training.lexicon import espeak
from tutti_asr_lab.training.lexicon.espeak import PHONES, SIMPLER, STRESS, pronounce


def test_a_missing_espeak_is_named_in_the_error(monkeypatch):
    monkeypatch.setattr(espeak, "SPEAK", ("no-such-program",))
    with pytest.raises(TrainingError, match="espeak-ng"):
        pronounce(["word"])


def test_rare_phones_are_replaced_by_more_frequent_ones_and_stress_is_removed():
    need_programs("espeak-ng")
    spoken = pronounce(["a", "bird", "button", "fire", "north", "about"])
    found = {phone for phones in spoken.values() for phone in phones}
    assert found <= PHONES
    assert not found & set(SIMPLER)
    assert not any(ord(mark) in STRESS for phone in found for mark in phone)
    assert spoken["a"] == ("ə",), "the article, not the letter's name"
    assert spoken["fire"] == ("f", "aɪ", "ɚ")


def test_no_words_are_pronounced_without_espeak(monkeypatch):
    monkeypatch.setattr(espeak, "SPEAK", ("no-such-program",))
    assert pronounce([]) == {}
