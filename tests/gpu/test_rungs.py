"""Choice of the kernels for a device, and its errors."""

import pytest
import torch

from model.errors import PrecisionError
from model.gpu import rungs
from tests.support.networks.gpu_networks import SIZES, fp16_network

CUDA = torch.device("cuda")


@pytest.mark.parametrize("rung", ["graph", "persistent"])
def test_a_rung_of_kernels_without_triton_says_what_to_install(rung, monkeypatch):
    monkeypatch.setattr(rungs, "find_spec", lambda name: None)
    with pytest.raises(PrecisionError, match="pip install triton"):
        rungs.choose_rung(rung, fp16_network(SIZES["even"]), CUDA)


def test_auto_without_triton_is_eager(monkeypatch):
    monkeypatch.setattr(rungs, "find_spec", lambda name: None)
    assert rungs.choose_rung("auto", fp16_network(SIZES["even"]), CUDA) == "eager"


def test_an_unknown_rung_is_rejected():
    with pytest.raises(PrecisionError, match="must be one of auto"):
        rungs.choose_rung("fast", fp16_network(SIZES["even"]), CUDA)
