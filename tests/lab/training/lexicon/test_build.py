"""Building of a lexicon: foreign phones, Roman numerals, the same bytes, progress."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from model.errors import LexiconError
from model.lexicon.lexicon import Lexicon
from model.lm.arpa import Ngrams
from model.lm.trie import SPECIAL_WORDS, NgramTable
from tests.support.needs import need_programs
from tutti_asr_lab.training.language_model.arpa_writing import write_arpa
from tutti_asr_lab.training.lexicon import build

SAID = {"and": ("æ", "n", "d"), "an": ("æ", "n"), "dan": ("d", "æ", "n"), "ann": ("ææ",)}


def write_lm(path: Path, *words: str) -> Path:
    every = (*SPECIAL_WORDS, *sorted(words))
    ids = np.arange(len(every), dtype=np.int32)[:, None]
    write_arpa(path, Ngrams(every, (NgramTable(ids, *np.full((2, len(every)), -1.0, np.float32)),)))
    return path


def test_a_word_has_espeaks_pronunciation() -> None:
    words, _ = build.learn(SAID, print)
    assert words["and"] == (("æ", "n", "d"),)
    assert words["dan"] == (("d", "æ", "n"),)


def test_roman_numerals_are_pronounced_as_numbers_and_not_used_for_rules() -> None:
    roman = ("ɹ", "oʊ", "m", "ə", "n")
    words, rules = build.learn(SAID | {"ii": (*roman, "t", "u"), "roman": roman}, print)
    assert words["ii"] == (("t", "u"),)
    assert words["roman"] == (roman,)
    assert rules.pronounce("i") == ()


def test_a_word_with_foreign_phones_is_pronounced_by_the_rules() -> None:
    words, rules = build.learn(SAID, print)
    assert words["ann"] == (rules.pronounce("ann"),)
    assert words["ann"][0][:2] == ("æ", "n")


def test_a_language_model_without_an_english_word_is_refused() -> None:
    with pytest.raises(LexiconError, match="English"):
        build.learn({"ann": ("ææ",)}, print)


def test_held_out_words_come_from_the_whole_alphabet(monkeypatch: pytest.MonkeyPatch) -> None:
    """aa, ba and dd are held out; the remaining words have neither b nor d."""
    monkeypatch.setattr(build, "HELD_OUT", 3)
    aligned = {word: tuple((letter,) for letter in word) for word in ("aa", "ba", "ca", "dd", "ea")}
    found = build.measure(aligned)
    assert (found.words, found.word_errors, found.phone_errors) == (3, 2 / 3, 3 / 6)


def test_the_same_language_model_gives_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_programs("espeak-ng")
    lm = write_lm(tmp_path / "small.arpa", "the", "rain", "Spain", "it's", "42", "'")
    files = [tmp_path / f"{name}.lexicon.gz" for name in ("one", "two")]
    for out in files:
        build.build(lm, out, print)
    assert files[0].read_bytes() == files[1].read_bytes()
    lexicon = Lexicon.load(files[0])
    assert set(lexicon.words) == {"the", "rain", "spain", "it's"}
    assert lexicon.words["the"] == (("ð", "ə"),)
    assert "pronounced 4 of 4 words" in capsys.readouterr().out


def test_a_missing_language_model_ends_the_command_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["build", "--lm", str(tmp_path / "no.arpa"), "--out", str(tmp_path / "x")])
    with pytest.raises(SystemExit, match=r"no\.arpa"):
        build.main()
