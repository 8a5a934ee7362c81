"""Phones as a second target: espeak-ng's pronunciations of the words of texts."""

import pytest

from model.errors import TrainingError
from tests.support.needs import need_programs
from tutti_asr_lab.training.lexicon import espeak
from tutti_asr_lab.training.lexicon.spoken import Pronunciations


def test_homophones_have_the_same_phones_and_other_words_differ():
    need_programs("espeak-ng")
    spoken = Pronunciations.of(["to sea", "two see", "don't"])
    assert spoken.target("two see") == spoken.target("to sea")
    assert spoken.target("see") != spoken.target("don't")
    assert all(1 <= phone <= len(spoken.phones) for phone in spoken.target("two see don't"))


def test_a_missing_espeak_is_named_in_the_error(monkeypatch):
    monkeypatch.setattr(espeak, "SPEAK", ("no-such-program",))
    with pytest.raises(TrainingError, match="espeak-ng"):
        Pronunciations.of(["a word"])


def test_texts_that_lack_some_phones_keep_those_of_the_network_to_start_from(monkeypatch):
    monkeypatch.setattr(espeak, "pronounce", lambda words: dict.fromkeys(words, ("b", "a")))
    kept = Pronunciations.of(["ba ba"], known=("a", "b", "c"))
    assert (kept.phones, kept.target("ba")) == (("a", "b", "c"), [2, 1])
    assert Pronunciations.of(["ba"], known=("a", "c")).phones == ("a", "b")
