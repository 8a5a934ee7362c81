"""The shipped recurrent language model: its files, and equal scores on every processor."""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np
import pytest

from model.acoustic import load_own
from model.config import SHIPPED_WEIGHTS
from model.decoder import RESCORED_BEAMS, SECOND_PASS_BEAMS, SENTENCES, accurate_of, decoder_of
from model.evaluation.digest import committed_digest, main, scores_digest
from model.lm.recurrent.model import RecurrentLanguageModel, kept_model
from tests.support.audio.speech import samples


def model() -> RecurrentLanguageModel:
    return kept_model(SENTENCES)


def test_its_scores_are_those_that_were_committed() -> None:
    """Holds for any instruction set; the same test also runs with AVX2 only."""
    assert scores_digest(model()) == committed_digest(SENTENCES.name)


def test_the_command_prints_the_committed_digest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["digest", "--model", str(SENTENCES)])
    main()
    assert capsys.readouterr().out == f"{committed_digest(SENTENCES.name)}  {SENTENCES.name}\n"


def test_its_files_are_those_in_its_description() -> None:
    card = (SHIPPED_WEIGHTS / "SENTENCES.md").read_text(encoding="utf-8")
    sums = (SHIPPED_WEIGHTS / "SHA256SUMS").read_text(encoding="ascii")
    for path in (SENTENCES, SENTENCES.with_suffix(".json")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"{digest}  {path.name}" in sums
    assert hashlib.sha256(SENTENCES.read_bytes()).hexdigest() in card
    assert f"{len(model().pieces):,} pieces" in card
    assert f"weight {model().counts.weight}" in card


def test_sentences_are_likelier_than_their_words_in_another_order() -> None:
    rng, better, texts = random.Random(1), 0, [item.text.split() for item in samples()]
    texts = [text for text in texts if len(set(text)) > 4]
    for text in texts:
        mixed = rng.sample(text, len(text))
        right, wrong = model().score([text, mixed])
        better += bool(right > wrong)
    assert better == len(texts) > 5


def test_every_word_of_the_n_grams_has_pieces() -> None:
    acoustic = load_own(device="cpu", precision="int8")
    words = decoder_of(acoustic.facts).lm.words
    assert all(np.isfinite(model().score([words[at : at + 20] for at in range(0, 2_000, 20)])))
    assert all(model().pieces.of(word) for word in words)


def test_accurate_finals_use_it_with_the_shipped_vocabulary() -> None:
    acoustic = load_own(device="cpu", precision="int8")
    accurate = accurate_of(acoustic.facts, decoder_of(acoustic.facts))
    assert accurate is not None
    assert accurate.second.beams == RESCORED_BEAMS
    other = accurate_of(acoustic.facts, decoder_of(acoustic.facts, decoder="beam", lm="off"), "off")
    assert other is not None
    assert other.second.beams == SECOND_PASS_BEAMS


@pytest.mark.parametrize("word", ["tutti", "o'clock"])
def test_a_word_is_scored_by_its_letters(word: str) -> None:
    assert "".join(model().pieces.symbols[piece] for piece in model().pieces.of(word)).replace("_", "") == word
