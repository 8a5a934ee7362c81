"""The shipped lexicon, with the shipped language model."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.lexicon.lexicon import Lexicon
from model.lm.language_model import LanguageModel
from model.lm.trie import SPECIAL_WORDS
from tutti_asr_lab.training.lexicon.alignment import align
from tutti_asr_lab.training.lexicon.build import HELD_OUT, measure
from tutti_asr_lab.training.lexicon.espeak import PHONES

WEIGHTS = Path(__file__).parents[3] / "model" / "weights"
FILE = WEIGHTS / "tutti-words.lexicon.gz"


@pytest.fixture(scope="module")
def shipped() -> Lexicon:
    return Lexicon.load(FILE)


def test_it_is_small_and_its_card_and_the_checksums_name_it(shipped: Lexicon) -> None:
    assert FILE.stat().st_size < 1_000_000
    assert shipped.digest in (WEIGHTS / "PRONUNCIATIONS.md").read_text(encoding="utf-8")
    assert f"{shipped.digest}  {FILE.name}" in (WEIGHTS / "SHA256SUMS").read_text(encoding="ascii")


def test_every_word_of_the_language_model_has_a_pronunciation_in_the_phones_of_the_lexicon(shipped: Lexicon) -> None:
    words = LanguageModel.load(WEIGHTS / "tutti-words.arpa.gz").words[len(SPECIAL_WORDS) :]
    assert len(words) == 80_000
    assert set(words) <= shipped.words.keys()
    phones = frozenset(shipped.phones)
    assert phones == PHONES
    assert all(spoken and all(phones.issuperset(one) for one in spoken) for spoken in shipped.words.values())


def test_each_word_has_only_the_pronunciation_that_the_network_learned(shipped: Lexicon) -> None:
    assert shipped.words["a"] == (("ə",),)
    assert shipped.words["the"] == (("ð", "ə"),)
    assert {len(spoken) for spoken in shipped.words.values()} == {1}


def test_words_that_the_language_model_lacks_are_pronounced_as_they_are_spelled(shipped: Lexicon) -> None:
    assert "snorfing" not in shipped.words
    assert shipped.pronounce("snorfing") == (("s", "n", "ɔ", "ɹ", "f", "ɪ", "ŋ"),)


def test_rules_pronounce_most_held_out_words_correctly(shipped: Lexicon) -> None:
    """On a quarter of the words, for speed: 52 % of words; `PRONUNCIATIONS.md` has the rates for all."""
    aligned = align({word: shipped.words[word][0] for word in sorted(shipped.words)[::4]})
    found = measure(aligned)
    assert found.words == HELD_OUT
    assert found.word_errors < 0.50
    assert found.phone_errors < 0.11
