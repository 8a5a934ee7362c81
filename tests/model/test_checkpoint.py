"""Checkpoints: writing and reading back; damage is named. Precision and device choices."""

import json
import os
import subprocess
import sys

import pytest
import torch

from model import checkpoint, precision
from model.acoustic import AcousticModel
from model.config import ModelConfig
from model.errors import CheckpointError, PrecisionError
from model.precision import resolve_device, resolve_precision

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


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
def test_a_configuration_that_does_not_fit_is_refused_with_its_reason(written, change, message):
    _, path = written
    config = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(path)


def test_the_configuration_survives_json():
    config = ModelConfig(training={"wer": 0.5})
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_unavailable_precision_is_refused_with_an_alternative():
    cpu = resolve_device("cpu")
    with pytest.raises(PrecisionError, match="fp16 needs a GPU"):
        resolve_precision("fp16", cpu)
    with pytest.raises(PrecisionError, match="not one of"):
        resolve_precision("fp8", cpu)
    assert resolve_precision("auto", cpu) in ("bf16", "fp32")


@pytest.mark.parametrize("named", ["bf16", "int8"])
def test_bf16_and_int8_are_refused_on_a_processor_without_bfloat16_products(monkeypatch, named):
    """int8 weights are multiplied by bf16 activations. A GPU does its products itself."""
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    with pytest.raises(PrecisionError, match=rf"^precision {named} needs .* AVX-512 .*: use --precision fp32 or auto$"):
        resolve_precision(named, torch.device("cpu"))
    assert [resolve_precision(name, torch.device("cpu")) for name in ("auto", "fp32")] == ["fp32", "fp32"]
    assert resolve_precision("bf16", torch.device("cuda")) == "bf16"


def test_bf16_support_follows_onednns_own_instruction_limit():
    """oneDNN limited to AVX2 stands for an older processor: the flags of the real one do not count."""
    code = (
        "import torch; from model import precision as p; "
        "print(p.multiplies_bf16(), p.native_bf16(), p.resolve_precision('auto', torch.device('cpu')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | AVX2, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "False", "fp32"]
