"""Checkpoints: what is written is what is read, and damage is named."""

import json

import pytest
import torch

from model import checkpoint
from model.acoustic import AcousticModel
from model.config import ModelConfig
from model.errors import CheckpointError, PrecisionError
from model.precision import resolve_device, resolve_precision


@pytest.fixture
def written(tmp_path):
    network = AcousticModel.random().network
    path = tmp_path / "net.safetensors"
    checkpoint.save(network, path)
    return network, path


def test_a_round_trip_keeps_weights_and_configuration(written):
    network, path = written
    loaded, digest = checkpoint.load(path)
    assert loaded.config == network.config
    pairs = zip(loaded.state_dict().values(), network.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert len(digest) == 64


def test_saving_leaves_no_partial_file(written):
    assert sorted(p.name for p in written[1].parent.iterdir()) == ["net.json", "net.safetensors"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"absent\.safetensors"):
        checkpoint.load(tmp_path / "absent.safetensors")


def test_truncated_weights_are_named(written):
    _, path = written
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="does not hold the weights"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99"),
        ({"colour": "red"}, "unknown fields: colour"),
        ({"step_samples": 1000}, "not a multiple"),
        ({"hidden": 128}, "does not hold the weights"),
    ],
)
def test_a_configuration_that_does_not_fit_is_explained(written, change, message):
    _, path = written
    config = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(path)


def test_the_configuration_survives_json():
    config = ModelConfig(training={"wer": 0.5})
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_precision_that_is_not_to_be_had_is_refused_with_a_way_out():
    cpu = resolve_device("cpu")
    with pytest.raises(PrecisionError, match="fp16 needs a GPU"):
        resolve_precision("fp16", cpu)
    with pytest.raises(PrecisionError, match="not one of"):
        resolve_precision("fp8", cpu)
    assert resolve_precision("auto", cpu) in ("bf16", "fp32")
