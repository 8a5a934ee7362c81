"""Files of the shipped models: digests, cards, finished runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from model import checkpoint
from model.acoustic import load_own
from model.decoder import language_model_path, lexicon_path
from model.evaluation.digest import committed_digest, log_probs_digest

CARDS = {"tutti": "MODEL_CARD.md", "tutti-gru": "GRU.md", "tutti-mandarin": "MANDARIN.md"}


@pytest.mark.parametrize("name", CARDS)
def test_outputs_are_those_committed_and_the_card_tells_what_ships(name: str) -> None:
    path = checkpoint.named(Path(name))
    model = load_own(path, device="cpu", precision="int8")
    assert log_probs_digest(model) == committed_digest(path.name)
    card = (checkpoint.WEIGHTS / CARDS[name]).read_text(encoding="utf-8")
    assert model.config.version in card
    assert model.facts.digest in card
    facts = model.facts.own_config.training
    assert facts["updates"] == facts["recipe"]["updates"], "the run was not finished"
    assert model.facts.own_config.language == ("zh" if name == "tutti-mandarin" else "en")


def test_the_default_model_is_small_and_was_validated_on_every_source() -> None:
    assert checkpoint.SHIPPED.stat().st_size <= 5 * 2**20
    validation = checkpoint.read_config(checkpoint.SHIPPED).training["validation"]
    assert set(validation["by_source"]) == {"commonvoice_en", "fsdd_digits", "librispeech", "speechocean762"}


def test_the_files_of_mandarin_are_in_the_list_of_sums() -> None:
    sums = (checkpoint.WEIGHTS / "SHA256SUMS").read_text(encoding="ascii")
    lm = language_model_path(None, "zh")
    assert lm is not None
    for path in (checkpoint.shipped_for("zh"), lm, lexicon_path(lm)):
        assert f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" in sums
