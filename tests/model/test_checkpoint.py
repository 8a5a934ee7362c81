"""Checkpoints: round trips and errors for damaged files. Choice of precision and device."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model import checkpoint
from model.acoustic import load_model
from model.config import ModelConfig
from model.errors import CheckpointError, PrecisionError
from model.machine import precision
from model.machine.device import Device
from model.machine.precision import resolve_device, resolve_precision
from model.torch_network.checkpoint import load_network, save_network
from model.torch_network.network import Network
from tests.support.networks.small_networks import SMALL, noise, small_network
from tutti_asr_lab.training.quantization.quantize import quantize

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.fixture
def written(tmp_path):
    network = small_network()
    path = tmp_path / "net.safetensors"
    save_network(network, path)
    return network, path


def test_a_round_trip_keeps_weights_and_configuration(written):
    network, path = written
    loaded, digest = load_network(path)
    assert loaded.config == network.config
    pairs = zip(loaded.state_dict().values(), network.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert len(digest) == 64


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"absent\.safetensors"):
        load_network(tmp_path / "absent.safetensors")


def test_a_name_that_is_not_shipped_lists_those_that_are():
    names = "tutti, fast, economy, gru, mandarin"
    with pytest.raises(CheckpointError, match=rf"cannot read medium: .*the name of a shipped one: {names}$"):
        load_model(Path("medium"), device="cpu")


def test_truncated_weights_are_named(written):
    _, path = written
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="do not fit its configuration"):
        load_network(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99"),
        ({"format_version": 5, "backward": [1]}, "format version 5 is not supported; this program reads up to 4"),
        ({"colour": "red"}, "unknown fields: colour"),
        ({"step_samples": 1000}, "must be a multiple"),
        ({"hidden": 416.0}, r"hidden must be a whole number, at least 1, not 416\.0"),
        ({"hidden": 128}, "do not fit its configuration"),
    ],
)
def test_a_configuration_that_does_not_fit_is_rejected_with_the_reason(written, change, message):
    _, path = written
    config = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=message):
        load_network(path)


def test_the_configuration_survives_json():
    config = ModelConfig(training={"wer": 0.5})
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_unavailable_precision_is_rejected_with_an_alternative():
    cpu = resolve_device("cpu")
    with pytest.raises(PrecisionError, match="fp16 needs a GPU"):
        resolve_precision("fp16", cpu, quantized=True)
    with pytest.raises(PrecisionError, match="must be one of auto, fp32"):
        resolve_precision("fp8", cpu, quantized=True)
    with pytest.raises(PrecisionError, match="int8 needs a CPU"):
        resolve_precision("int8", Device("cuda"), quantized=True)


@pytest.mark.parametrize(
    ("instructions", "native", "quantized", "expected"),
    [
        ("vnni512", True, True, "int8"),
        ("avx2", False, True, "int8"),
        ("portable", False, True, "fp32"),
        ("portable", True, True, "bf16"),
        ("vnni512", True, False, "bf16"),
        ("avx2", False, False, "fp32"),
    ],
)
def test_auto_is_the_fastest_precision_of_processor_and_checkpoint(
    monkeypatch, instructions, native, quantized, expected
):
    monkeypatch.setattr("model.machine.instructions.instruction_set", lambda: instructions)
    monkeypatch.setattr(precision, "native_bf16", lambda: native)
    assert resolve_precision("auto", Device("cpu"), quantized=quantized) == expected
    assert resolve_precision("auto", Device("cuda"), quantized=quantized) == "fp16"


def test_int8_of_a_checkpoint_without_8_bit_weights_is_rejected_with_the_command_that_creates_them(written):
    _, path = written
    with pytest.raises(
        PrecisionError, match=f"^{path} has no 8-bit weights: .*`tutti quantize`, or use --precision auto$"
    ):
        load_model(path, device="cpu", precision="int8")
    assert load_model(path, device="cpu").precision in ("bf16", "fp32")


def test_bf16_is_rejected_on_a_processor_without_bfloat16_products(monkeypatch):
    """A GPU computes its own products."""
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    cpu = Device("cpu")
    message = r"^precision bf16 needs .* AVX-512 .*; use --precision int8, fp32 or auto$"
    with pytest.raises(PrecisionError, match=message):
        resolve_precision("bf16", cpu, quantized=True)
    assert [resolve_precision(name, cpu, quantized=False) for name in ("auto", "fp32")] == ["fp32", "fp32"]
    assert resolve_precision("bf16", Device("cuda"), quantized=False) == "bf16"


def test_bf16_support_follows_onednns_own_instruction_limit():
    """oneDNN limited to AVX2 emulates an older processor: the flags of the real one do not count."""
    code = (
        "from model.machine import precision as p; from model.machine.precision import Device, resolve_precision; "
        "print(p.multiplies_bf16(), p.native_bf16(), resolve_precision('auto', Device('cpu'), quantized=False))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | AVX2, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "False", "fp32"]


@pytest.fixture(scope="module")
def quantized():
    return quantize(small_network(), noise())


def test_integers_survive_a_round_trip_exactly(quantized, tmp_path):
    checkpoint.save_quantized(quantized, tmp_path / "net.safetensors")
    found, digest = checkpoint.load_quantized(tmp_path / "net.safetensors")
    assert len(digest) == 64
    assert found.config == quantized.config
    assert set(found.tensors) == set(quantized.tensors)
    for name, tensor in quantized.tensors.items():
        assert found.tensors[name].dtype == np.float32
        np.testing.assert_array_equal(found.tensors[name], tensor)
    for name, product in quantized.products.items():
        for field in dataclasses.fields(product):
            ours, theirs = getattr(found.products[name], field.name), getattr(product, field.name)
            np.testing.assert_array_equal(ours, theirs)
            assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)


def test_a_quantized_checkpoint_loads_as_floats_with_the_values_of_the_integers(quantized, tmp_path):
    checkpoint.save_quantized(quantized, tmp_path / "net.safetensors")
    network, digest = load_network(tmp_path / "net.safetensors")
    assert digest == checkpoint.load_quantized(tmp_path / "net.safetensors")[1]
    product = quantized.products["gru1.recurrent"]
    expected = product.weight.astype(np.float32) * product.scale[:, None]
    np.testing.assert_array_equal(network.grus[1].recurrent.weight.detach().numpy(), expected)
    np.testing.assert_array_equal(network.norms[0].weight.detach().numpy(), quantized.tensors["norms.0.weight"])


def test_a_checkpoint_of_floats_has_no_integers(written):
    assert checkpoint.load_quantized(written[1])[0] is None


@pytest.mark.parametrize("version", [1, 2])
def test_versions_without_phones_still_load(written, version):
    network, path = written
    described = json.loads(path.with_suffix(".json").read_text())
    assert described.pop("phones") == []
    path.with_suffix(".json").write_text(json.dumps({**described, "format_version": version}))
    loaded, _ = load_network(path)
    assert loaded.config == network.config


def test_phones_and_their_outputs_survive_a_round_trip_as_floats_and_as_integers(tmp_path):
    network = Network(dataclasses.replace(SMALL, phones=("ə", "aɪ", "tʃ"))).eval()
    integers = quantize(network, noise())
    save_network(network, tmp_path / "floats.safetensors")
    checkpoint.save_quantized(integers, tmp_path / "integers.safetensors")
    floats, _ = load_network(tmp_path / "floats.safetensors")
    assert json.loads((tmp_path / "floats.json").read_text())["format_version"] == 4
    assert floats.config.phones == ("ə", "aɪ", "tʃ")
    assert torch.equal(floats.head.weight, network.head.weight)
    found, _ = checkpoint.load_quantized(tmp_path / "integers.safetensors")
    assert found.config.phones == ("ə", "aɪ", "tʃ")
    np.testing.assert_array_equal(found.products["head"].weight, integers.products["head"].weight)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda t: t["dense.weight"].fill_(64), r"dense\.weight must be 8-bit integers within ±63"),
        (lambda t: t["dense.weight"].fill_(-128), r"dense\.weight must be 8-bit integers within ±63"),
        (lambda t: t.update({"dense.weight": t["dense.weight"].float()}), r"dense\.weight must be 8-bit integers"),
        (lambda t: t.pop("head.input_scale"), r"it lacks 'head\.input_scale'"),
        (lambda t: t.pop("norm.bias"), r"norm\.bias"),
        (lambda t: t.update({"head.weight_scale": torch.ones(3)}), "head must have the shape"),
        (lambda t: t.update({"colour": torch.ones(3)}), "colour"),
    ],
)
def test_damaged_integers_are_rejected_with_the_reason(quantized, tmp_path, damage, reason):
    path = tmp_path / "net.safetensors"
    checkpoint.save_quantized(quantized, path)
    tensors = load_file(path)
    damage(tensors)
    save_file(tensors, path)
    for load in (load_network, checkpoint.load_quantized):
        with pytest.raises(CheckpointError, match=f"do not fit its configuration: .*{reason}"):
            load(path)


@pytest.mark.parametrize("sizes", [{}, {"layers": 6}, {"phones": ("a", "b"), "hidden": 64, "mel_bins": 40}])
def test_the_shapes_computed_without_torch_are_those_of_the_network(sizes):
    config = dataclasses.replace(ModelConfig(), **sizes)
    shapes = {name: tuple(tensor.shape) for name, tensor in Network(config).state_dict().items()}
    assert checkpoint.state_shapes(config) == shapes
