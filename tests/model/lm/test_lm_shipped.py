"""The shipped language model."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.lm.language_model import LanguageModel
from model.recordings import read_manifest

WEIGHTS = Path(__file__).parents[3] / "model" / "weights"
ARPA = WEIGHTS / "tutti-words.arpa.gz"


@pytest.fixture(scope="module")
def shipped() -> LanguageModel:
    return LanguageModel.load(ARPA)


def test_it_is_small_and_its_card_names_it(shipped: LanguageModel) -> None:
    assert ARPA.stat().st_size <= 12_000_000
    assert shipped.order == 3
    assert shipped.digest in (WEIGHTS / "LANGUAGE_MODEL.md").read_text(encoding="utf-8")


def test_words_are_spelled_with_the_acoustic_models_letters(shipped: LanguageModel) -> None:
    letters = set("abcdefghijklmnopqrstuvwxyz'")
    assert all(set(word) <= letters for word in shipped.words[3:])


def test_digits_and_requests_stay_likely(shipped: LanguageModel) -> None:
    """Seven million words of prose must not make typical words of callers improbable."""
    samples = WEIGHTS.parent / "samples" / "samples.jsonl"
    found = shipped.perplexity(row.text for row in read_manifest(samples))
    assert found.unknown == 0
    assert found.perplexity < 200
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert shipped.perplexity(digits).perplexity < 100


def test_english_is_likelier_than_similar_sounding_text(shipped: LanguageModel) -> None:
    for said, misheard in (
        ("recognise speech", "wreck a nice beach"),
        ("they went to their house", "they went to there house"),
        ("it was a long time ago", "it was along thyme ago"),
    ):
        assert sum(shipped.score(said.split())) > sum(shipped.score(misheard.split()))
