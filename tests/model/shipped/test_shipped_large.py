"""The English segment model with backward layers: committed digests, model card, no streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from model import checkpoint
from model.acoustic import load_own, load_segment_model
from model.decoder import decoder_of
from model.errors import CheckpointError
from model.evaluation.digest import committed_digest, log_probs_digest
from model.evaluation.scoring import Score, by_source
from model.int8_model import Int8Model
from tests.support.audio.speech import samples
from tutti_asr_lab.training.evaluation.outputs import RecordingOutput, mean_outputs_of, outputs_of, text_of

MODEL = checkpoint.named(Path("large"))


@pytest.fixture(scope="module")
def model() -> Int8Model:
    return load_segment_model(MODEL)


def test_it_is_the_segment_model() -> None:
    assert (MODEL,) == checkpoint.SEGMENT_MODELS
    with pytest.raises(CheckpointError, match="finals accurate"):
        load_own(MODEL)


def test_its_log_probabilities_are_those_that_were_committed(model: Int8Model) -> None:
    assert log_probs_digest(model) == committed_digest(MODEL.name)


def test_its_card_contains_the_digest_of_its_weights(model: Int8Model) -> None:
    card = (checkpoint.WEIGHTS / "LARGE.md").read_text(encoding="utf-8")
    assert model.digest in card
    assert model.config.version in card
    facts = model.config.training
    assert facts["updates"] == facts["recipe"]["updates"], "the run was not finished"
    assert f"{facts['recipe']['updates']:,} updates" in card


def test_the_shipped_recordings_are_recognized_at_least_as_well_with_it_as_without(model: Int8Model) -> None:
    small = load_own(device="cpu", precision="int8")
    decoder = decoder_of(small.facts)

    def errors(outputs: Sequence[RecordingOutput]) -> int:
        rows = ((each.utterance.source, each.utterance.text, text_of(decoder, each)) for each in outputs)
        return sum(by_source(rows).values(), Score()).word_errors

    assert errors(mean_outputs_of(small, model, samples())) <= errors(outputs_of(small, samples()))
