"""Sizes and rooflines of the benchmark's networks, and the cases of a full run."""

import importlib
import json

import pytest
import torch

from model.config import ModelConfig
from model.torch_network.network import Network
from tutti_asr_lab.benchmarks.gpu.networks import (
    NETWORKS,
    Ceilings,
    random_network,
    step_flop,
    step_roofline_us,
    weight_bytes,
    weights,
)
from tutti_asr_lab.benchmarks.gpu.runner import SECTIONS
from tutti_asr_lab.benchmarks.gpu.scale import FULL, Context
from tutti_asr_lab.training.acoustic.recipe import RECIPES, read_recipe

LARGE = NETWORKS["ds2-7x1760"]


def test_sizes_of_the_large_network():
    assert weights(LARGE) == pytest.approx(140.3e6, rel=1e-3)
    assert weight_bytes(LARGE) == pytest.approx(281e6, rel=2e-3)
    assert step_flop(LARGE) == pytest.approx(0.56e9, rel=1e-2)


def test_computed_sizes_match_the_network():
    config = NETWORKS["tiny"]
    network = Network(config)
    matrices = [each for name, each in network.named_parameters() if each.ndim == 2 and name != "lookahead.weight"]
    assert sum(each.numel() for each in matrices) == weights(config)


def test_a_step_is_bound_by_reading_weights_up_to_133_rows():
    h100 = Ceilings.of_device(torch.device("cpu"))
    assert step_roofline_us(LARGE, 1, h100) == pytest.approx(94, rel=0.01)
    assert step_roofline_us(LARGE, 1, Ceilings(read_tb_s=4.3)) == pytest.approx(65, rel=0.01)
    assert step_roofline_us(LARGE, 132, h100) == step_roofline_us(LARGE, 1, h100)
    assert step_roofline_us(LARGE, 134, h100) > step_roofline_us(LARGE, 1, h100)


@pytest.mark.parametrize("name", ["ds2-5x1760", "ds2-7x1760"])
def test_the_training_recipe_of_a_network_has_the_measured_sizes(name):
    config, _ = read_recipe(RECIPES / f"{name}.json")
    measured = NETWORKS[name].to_dict()
    assert config.to_dict() == measured | {"version": "untrained"}


def test_a_random_network_is_reproducible_with_normalized_features():
    one, other = (random_network(ModelConfig(conv_channels=32, hidden=64, layers=1, lookahead=2)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    recurrent = one.grus[0].recurrent.weight
    assert float(recurrent.detach().std()) == pytest.approx(64**-0.5, rel=0.05)
    assert float(one.features.scale.std()) > 0


def planned(section):
    """Return the cases of a full run on a GPU, without running them."""
    context = Context(torch.device("cuda"), FULL)
    return [
        case for case, _ in importlib.import_module(f"tutti_asr_lab.benchmarks.gpu.sections.{section}").cases(context)
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_no_two_cases_of_a_section_are_the_same(section):
    cases = [json.dumps(case, sort_keys=True) for case in planned(section)]
    assert cases
    assert len(cases) == len(set(cases))
