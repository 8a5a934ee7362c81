"""Figures of `tutti ceiling`: one model, every precision, and what a step computes."""

from __future__ import annotations

import pytest

from model.evaluation import ceiling
from model.int8_model import Int8Model
from model.torch_model import TorchModel
from tests.support.needs import need_precision
from tests.support.networks.quantized_networks import random_quantized


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_ceiling_measures_every_precision(precision: str) -> None:
    need_precision(precision)
    model = Int8Model(random_quantized(), "x") if precision == "int8" else TorchModel.random(precision=precision)
    figures = ceiling.measure(model, (1, 2))
    assert figures.precision == precision
    assert min(figures.product_gflops, figures.step_gflops) > 0


def test_ceiling_counts_two_operations_per_weight_and_frame() -> None:
    """The first convolution has twice as many frames."""
    model = TorchModel.random()
    weights = {name: each for name, each in model.network.state_dict().items() if name.endswith(".weight")}
    sizes = {name: each.numel() for name, each in weights.items() if each.ndim == 2 and "lookahead" not in name}
    per_frame = sum(sizes.values()) + sizes["conv0.product.weight"]
    assert model.config.step_operations == 2 * model.config.frames_per_step * per_frame
