"""Sentences to be read by neural voices: known words, none of the development set, errors that name the origin."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from model.errors import LanguageModelError
from tutti_asr_lab.training.synthesis.reading import DIGIT_STRINGS, DIGITS, FILES, Overlap, to_read

DEVELOPMENT = "she went down to the old house by the river"
FIT = ["the captain was very glad", "they went to the old house again"]
OFFERED = [*FIT, "too short", "the word zzyzxq is in no lexicon", "and down to the old house by the river", "so " * 14]


@pytest.mark.parametrize("line", ["a b c d e f", "x a b c d e f", "b c d e f g y"])
def test_six_words_in_a_row_anywhere_are_an_overlap(line: str) -> None:
    assert line in Overlap(["a b c d e f g"])
    assert line.replace("d", "q") not in Overlap(["a b c d e f g"])


def test_a_whole_sentence_of_two_words_is_an_overlap_and_one_word_is_not() -> None:
    overlap = Overlap(["good evening", "seven"])
    assert [line in overlap for line in ("good evening", "good evening to you", "seven")] == [True, False, False]


def test_sentences_are_short_and_known_and_not_in_the_development_set(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text(json.dumps({"audio": "a.ogg", "text": DEVELOPMENT}) + "\n")
    with pytest.raises(LanguageModelError, match=r"se_books.*Standard Ebooks.*--text"):
        list(to_read(tmp_path, tmp_path))
    files = [name for names, _, _ in FILES.values() for name in names]
    for name in files:
        (tmp_path / name).write_bytes(lzma.compress("\n".join(OFFERED).encode()))
    lines = list(to_read(tmp_path, tmp_path))
    assert lines == list(to_read(tmp_path, tmp_path))
    assert sorted(lines[: 2 * len(files)]) == sorted(len(files) * FIT)
    assert all(word in DIGITS for line in lines[-DIGIT_STRINGS:] for word in line.split())
    assert {*DIGITS} <= {*lines}, "each digit occurs alone too"
