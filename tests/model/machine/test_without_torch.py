"""Precisions on a machine without torch: `auto` is int8 on every processor, anything else names the extra."""

import pytest

from model.errors import MissingPackage
from model.machine import instructions, precision
from model.machine.device import Device

CPU = Device("cpu")


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch):
    monkeypatch.setattr(precision, "find_spec", lambda name: None)
    monkeypatch.setattr("model.errors.find_spec", lambda name: None)


@pytest.mark.parametrize("found", ["portable", "avx2"])
def test_integers_are_computed_on_every_processor(found, monkeypatch):
    monkeypatch.setattr(instructions, "instruction_set", lambda: found)
    assert precision.resolve_precision("auto", CPU, quantized=True) == "int8"


@pytest.mark.parametrize("asked", ["auto", "fp32", "bf16"])
def test_other_arithmetic_names_the_extra(asked):
    with pytest.raises(MissingPackage, match=r"needs torch: pip install .*\[torch\]"):
        precision.resolve_precision(asked, CPU, quantized=False)


def test_a_gpu_is_not_used_without_it(monkeypatch):
    monkeypatch.setattr(precision, "_GPU_DEVICES", ("/dev/null",))
    assert precision.resolve_device("auto") == CPU
    with pytest.raises(MissingPackage, match="--device cuda needs torch"):
        precision.resolve_device("cuda")
