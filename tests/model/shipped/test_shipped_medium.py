"""The larger English model: found by its name, equal on all processors, with a correct model card."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from model import checkpoint
from model.acoustic import load_own
from model.evaluation.digest import committed_digest, log_probs_digest
from model.int8.model import Int8Model
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local
from tests.support.audio.speech import samples

MODEL = checkpoint.named(Path("medium"))


@pytest.fixture(scope="module")
def model() -> Int8Model:
    loaded = load_own(MODEL, device="cpu", precision="int8")
    assert isinstance(loaded, Int8Model)
    return loaded


def test_it_is_found_by_either_name() -> None:
    assert checkpoint.named(Path("tutti-medium")) == MODEL
    assert MODEL.parent == checkpoint.WEIGHTS


def test_its_log_probabilities_are_those_that_were_committed(model: Int8Model) -> None:
    assert log_probs_digest(model) == committed_digest(MODEL.name)


def test_its_card_contains_the_digest_of_its_weights(model: Int8Model) -> None:
    card = (checkpoint.WEIGHTS / "MEDIUM.md").read_text(encoding="utf-8")
    assert model.digest in card
    assert model.config.version in card
    facts = model.config.training
    assert facts["updates"] == facts["recipe"]["updates"], "the run was not finished"
    assert f"{facts['recipe']['updates']:,} updates" in card


def test_the_shipped_recordings_are_transcribed_at_least_as_well_as_by_the_small_one() -> None:
    errors = {}
    for name in ("tutti-small", "tutti-medium"):
        settings = Settings(model=name, max_batch=8)
        errors[name] = asyncio.run(evaluate(samples(), lambda chosen=settings: open_local(chosen), 8)).figures()["wer"]
    assert errors["tutti-medium"] <= errors["tutti-small"], errors
