"""The second network of accurate finals: a segment model, or another streaming model."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from model import checkpoint
from model.acoustic import load_own
from model.config import ModelConfig
from model.decoder import ACCURATE, SHIPPED_LM, accurate_of, decoder_of, tuned_weights
from model.segment_model import reader_for
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local
from tests.support.audio.speech import samples


def config_of(name: str) -> ModelConfig:
    return checkpoint.outline(checkpoint.named(Path(name)))[0]


def digest_of(name: str) -> str:
    return checkpoint.outline(checkpoint.named(Path(name)))[1]


def test_the_english_model_uses_the_segment_model_for_the_second_pass() -> None:
    reader = reader_for(config_of("tutti-small"))
    assert reader is not None
    assert reader.digest == digest_of("tutti-large")


@pytest.mark.parametrize("changes", [{"lookahead": 5}, {"phones": ("a",)}, {"step_samples": 640}, {"language": "nl"}])
def test_a_model_of_other_symbols_or_frames_has_no_second_network(changes: dict[str, object]) -> None:
    assert reader_for(dataclasses.replace(config_of("tutti-small"), **changes)) is None  # type: ignore[arg-type]
    assert reader_for(config_of("tutti-mandarin")) is None


def test_networks_that_are_not_used_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a model's weights looks for its second network."""
    config = config_of("tutti-mandarin")
    read: list[Path] = []
    monkeypatch.setattr(checkpoint, "read", read.append)
    assert reader_for(config) is None
    assert not read


def test_a_decoder_with_a_second_network_is_created_and_warmed_up_if_possible() -> None:
    model = load_own(Path("tutti-small"), device="cpu", precision="int8")
    accurate = accurate_of(model.facts, decoder_of(model.facts))
    assert accurate is not None
    assert accurate.second.weights == tuned_weights(SHIPPED_LM, model.config.phones, ACCURATE)
    assert accurate.second.weights != accurate.first.weights
    accurate.warm_up()
    assert accurate_of(model.facts, decoder_of(model.facts, decoder="greedy")) is None


def test_the_shipped_recordings_are_recognized_at_least_as_well() -> None:
    errors = {}
    for finals in ("fast", "accurate"):
        found = asyncio.run(
            evaluate(samples(), lambda chosen=finals: open_local(Settings(max_batch=8), finals=chosen), 8)
        )
        errors[finals] = found.figures()["wer"]
    assert errors["accurate"] <= errors["fast"], errors
