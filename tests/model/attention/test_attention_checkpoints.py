"""Checkpoints of attention networks: other forms of the same tensors, what the shipped ones refuse, their decoding."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from model import checkpoint
from model.acoustic import load_model
from model.attention.checkpoint import save_attention
from model.attention.network import PackedAttention, PackedWeights
from model.attention_config import StepForm
from model.config import SHIPPED_LANGUAGES
from model.ctc.weights import DecodingWeights
from model.decoder import SHIPPED_LM, tuned_weights
from model.errors import CheckpointError, PrecisionError
from model.int8.slots import Int8Slots
from tests.support.networks.attention_networks import noise, quantized_network

FORMS = {"tutti": (240, 160), "tutti-fast": (160, 80), "tutti-economy": (400, 0)}  # ms of a step, and read ahead
OTHER = StepForm(new=20, ahead=0, left=24)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a checkpoint, and one that has its tensors and another form."""
    save_attention(quantized_network(), tmp_path / "own.safetensors")
    described = {"weights": "own", "name": "other", "form": {"new": 20, "ahead": 0, "left": 24}}
    (tmp_path / "other.json").write_text(json.dumps(described))
    return tmp_path


def test_a_description_can_name_the_tensors_of_another_checkpoint(folder: Path) -> None:
    """It has their settings but for those that it names; its digest is its own, because its states are."""
    own, other = (load_model(folder / f"{name}.safetensors") for name in ("own", "other"))
    assert (other.config.name, other.config.step_samples) == ("other", 20 * 320)
    assert (other.config.vocabulary, other.config.outputs) == (own.config.vocabulary, own.config.outputs)
    assert other.facts.digest != own.facts.digest
    assert checkpoint.outline(folder / "other.safetensors")[1] == other.facts.digest
    both = [
        other.slots(capacity=1, largest=1),
        Int8Slots(PackedAttention(PackedWeights(quantized_network()), OTHER), capacity=1, largest=1),
    ]
    for slots in both:
        slots.inputs[0] = noise(1, 1, OTHER)[0, 0]
    outputs, expected = (slots.run([0]) for slots in both)
    assert (outputs == expected).all()


def test_tensors_that_are_not_there_are_named(folder: Path) -> None:
    """The description is there, its tensors are not."""
    (folder / "own.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"own\.safetensors"):
        load_model(folder / "other.safetensors")


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"precision": "fp32"}, {"device": "cuda"}])
def test_the_default_network_names_the_one_that_computes_in_floats(options: dict[str, str]) -> None:
    """What it cannot do is refused, with what to do."""
    with pytest.raises(PrecisionError, match="--model tutti-gru"):
        load_model(**options)


@pytest.mark.parametrize("name", FORMS)
def test_the_shipped_forms_have_the_documented_steps_and_the_same_search(name: str) -> None:
    """One file of tensors, one width and one set of weights."""
    config = checkpoint.read_config(checkpoint.named(Path(name)))
    ahead_ms = 1e3 * config.delay_frames * config.frame_s
    assert (1e3 * config.step_samples / config.sample_rate, ahead_ms) == FORMS[name]
    assert config.search_limits == (256, 12.0)
    shipped = DecodingWeights.load(SHIPPED_LM.with_name("tutti-words.ctc-attention.phones.weights.json"))
    for named in (config, dataclasses.replace(config, name="calls", weights="")):  # and fine-tuned ones
        assert tuned_weights(SHIPPED_LM, named.phones, (named.trained_name, named.architecture)) == shipped


def test_the_default_network_is_the_first_of_its_language() -> None:
    """Its forms ship next to it."""
    assert checkpoint.SHIPPED.stem == next(iter(SHIPPED_LANGUAGES)) == "tutti"
    assert {*FORMS} <= {*SHIPPED_LANGUAGES}
