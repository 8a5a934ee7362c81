"""Pronunciations of a language model's words: cached next to its file, mapped, rebuilt if damaged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.ctc import phones
from model.ctc.phones import PhoneLexicon
from model.lexicon.lexicon import Lexicon
from model.lm.language_model import LanguageModel
from model.lm.pronounced import PhoneTrie
from tests.support.decoding.beam_toys import toy_lm
from tests.support.decoding.phone_toys import PHONES, SPOKEN

LEXICON = Lexicon(PHONES, SPOKEN, "toy")


@pytest.fixture
def every_trie_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phones, "MANY", 1)


def path_in(folder: Path) -> Path:
    return folder / "toy.arpa.gz"


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("toy.arpa.gz-*.phones.lm"))


def assert_alike(one: PhoneTrie, other: PhoneTrie) -> None:
    arrays = [
        (trie.spelling.follows, trie.spelling.below, trie.spelling.best, trie.first, trie.words, trie.likeliest)
        for trie in (one, other)
    ]
    for mine, theirs in zip(*arrays, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)


@pytest.mark.usefixtures("every_trie_is_kept")
def test_the_second_start_maps_the_file_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PhoneLexicon.of_model(PHONES, LEXICON, toy_lm())
    first = PhoneLexicon.of_model(PHONES, LEXICON, toy_lm(), path_in(tmp_path))
    monkeypatch.setattr(phones, "build_phones", lambda *_: pytest.fail("made anew"))
    second = PhoneLexicon.of_model(PHONES, LEXICON, toy_lm(), path_in(tmp_path))
    assert len(files(tmp_path)) == 1
    assert_alike(first.trie, made.trie)
    assert_alike(second.trie, made.trie)


@pytest.mark.usefixtures("every_trie_is_kept")
def test_another_lexicon_language_model_or_list_of_phones_has_a_file_of_its_own(tmp_path: Path) -> None:
    lm, path = toy_lm(), path_in(tmp_path)
    other = LanguageModel(lm.words, lm.trie, lm.characters, "another")
    PhoneLexicon.of_model(PHONES, LEXICON, lm, path)
    PhoneLexicon.of_model(PHONES, replace(LEXICON, digest="another"), lm, path)
    PhoneLexicon.of_model(PHONES, LEXICON, other, path)
    PhoneLexicon.of_model(PHONES[::-1], LEXICON, lm, path)
    assert len(files(tmp_path)) == 4


@pytest.mark.usefixtures("every_trie_is_kept")
@pytest.mark.parametrize("damage", [b"", b"tuttilm1", b"something else altogether"])
def test_a_damaged_file_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    made = PhoneLexicon.of_model(PHONES, LEXICON, toy_lm(), path_in(tmp_path))
    (kept,) = files(tmp_path)
    good = kept.read_bytes()
    kept.unlink()  # `made` is mapped from it
    kept.write_bytes(damage)
    assert_alike(PhoneLexicon.of_model(PHONES, LEXICON, toy_lm(), path_in(tmp_path)).trie, made.trie)
    assert kept.read_bytes() == good


@pytest.mark.usefixtures("every_trie_is_kept")
def test_the_cache_of_a_language_model_is_not_accepted_as_a_phone_trie(tmp_path: Path) -> None:
    PhoneLexicon.of_model(PHONES, LEXICON, toy_lm(), path_in(tmp_path))
    (kept,) = files(tmp_path)
    kept.unlink()
    toy_lm().save(kept)
    PhoneLexicon.of_model(PHONES, LEXICON, toy_lm(), path_in(tmp_path))
    assert PhoneTrie.mapped(kept)


def test_a_trie_of_few_words_is_not_cached(tmp_path: Path) -> None:
    PhoneLexicon.of_model(PHONES, LEXICON, toy_lm(), path_in(tmp_path))
    assert not files(tmp_path)
