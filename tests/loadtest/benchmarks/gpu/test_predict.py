"""The cost model against figures that were worked out by hand before it was written."""

import importlib
import json

import pytest
import torch

from loadtest.benchmarks.gpu.networks import NETWORKS, random_network, state_bytes, step_flop, weight_bytes, weights
from loadtest.benchmarks.gpu.predict import (
    Ceilings,
    Prediction,
    batch_rows,
    compared,
    frame_us,
    layer_us,
    nodes,
    predictions,
    step_roofline_us,
    step_us,
)
from loadtest.benchmarks.gpu.records import Results, Row, Run
from loadtest.benchmarks.gpu.runner import PARTS
from loadtest.benchmarks.gpu.scale import FULL, Context
from model.config import ModelConfig
from model.torch_network.network import Network
from model.training.acoustic.recipe import RECIPES, read_recipe

LARGE = NETWORKS["ds2-7x1760"]


def test_sizes_of_the_large_network():
    assert weights(LARGE) == pytest.approx(140.3e6, rel=1e-3)
    assert weight_bytes(LARGE) == pytest.approx(281e6, rel=2e-3)
    assert state_bytes(LARGE) == pytest.approx(99 * 1024, rel=1e-2)
    assert step_flop(LARGE) == pytest.approx(0.56e9, rel=1e-2)


def test_weights_and_states_are_those_of_the_network():
    config = NETWORKS["tiny"]
    network = Network(config)
    matrices = [each for name, each in network.named_parameters() if each.ndim == 2 and name != "lookahead.weight"]
    assert sum(each.numel() for each in matrices) == weights(config)
    state = network.half().fresh_state(1)
    assert sum(each.numel() * each.element_size() for each in state.values()) == state_bytes(config)


def test_a_step_is_bound_by_its_weights_up_to_133_rows():
    assert step_roofline_us(LARGE, 1) == pytest.approx(94, rel=0.01)
    assert step_roofline_us(LARGE, 1, Ceilings(read_tb_s=4.3)) == pytest.approx(65, rel=0.01)
    assert step_roofline_us(LARGE, 132) == step_roofline_us(LARGE, 1)
    assert step_roofline_us(LARGE, 134) > step_roofline_us(LARGE, 1)


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [(416, (0.6, 0.6, 0.6, 0.7)), (1_024, (0.7, 0.75, 0.95, 1.5)), (1_760, (0.8, 1.2, 1.8, 3.2)),
     (2_048, (0.9, 1.5, 2.3, 4.2))],
)  # fmt: skip
def test_a_frame_of_the_recurrence_at_1_4_8_and_16_rows(hidden, expected):
    assert [frame_us(hidden, rows) for rows in (1, 4, 8, 16)] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("rows", "frames", "expected"), [(1, 2, 7.8), (8, 2, 9.8), (1, 16, 19.0), (8, 16, 35.0)])
def test_a_layer_is_its_weights_once_and_then_its_frames(rows, frames, expected):
    node = 1.3
    assert layer_us(1_760, rows, frames) - node == pytest.approx(expected, rel=0.01)


def test_a_step_of_the_persistent_rung_has_about_25_kernels_and_stays_within_its_target():
    assert nodes(LARGE, "persistent") == 25
    assert nodes(LARGE, "graph") == 53
    assert all(step_us(LARGE, "persistent", rows) < 160 for rows in (1, 2, 4, 8))
    assert step_us(LARGE, "graph", 8) < 330


def test_eager_batches_of_4000_streams():
    assert batch_rows(4_000, 150, 1.1) == pytest.approx(8, rel=0.01)
    assert batch_rows(4_000, 240, 13.1) == pytest.approx(34, rel=0.03)


@pytest.mark.parametrize(
    ("bound", "missed"),
    [("about", [True, False, False, True]), ("at most", [False, False, False, True]),
     ("at least", [True, False, False, False])],
)  # fmt: skip
def test_a_prediction_is_missed_beyond_its_bound(bound, missed):
    one = Prediction("steps", {"rows": 1}, "us", 100.0, "computed", bound, "")
    assert [one.missed(value) for value in (70.0, 80.0, 129.0, 131.0)] == missed


def test_every_prediction_has_a_key_of_its_own():
    keys = [each.key for each in predictions()]
    assert len(keys) == len(set(keys))


def test_a_step_is_compared_with_the_plain_row_and_not_with_a_chunk_or_host_times():
    case = {"network": "ds2-7x1760", "rung": "persistent", "rows": 8}
    others = [case | {"steps": 8}, case | {"how": "host to host"}]
    rows = [Row(0, "steps", case, {"us": 150.0}), *(Row(0, "steps", other, {"us": 999.0}) for other in others)]
    found = [each for each in compared(Results([Run("2", {})], rows)) if each.prediction.case == case]
    assert [each.measured for each in found] == [150.0, 150.0]  # computed, and the target


def test_predictions_are_those_of_the_device_of_the_run():
    def read_gb_s(device):
        found = compared(Results([Run("1", {"device": device})]))
        return next(each.prediction.predicted for each in found if each.prediction.case == {"what": "read"})

    assert read_gb_s("NVIDIA H100 80GB HBM3") == 3_000
    assert read_gb_s("NVIDIA H200") == 4_300


@pytest.mark.parametrize("name", ["ds2-5x1760", "ds2-7x1760"])
def test_the_recipe_of_a_network_trains_the_sizes_that_are_measured(name):
    config, _ = read_recipe(RECIPES / f"{name}.json")
    measured = NETWORKS[name].to_dict()
    assert config.to_dict() == measured | {"version": "untrained"}


def test_a_random_network_is_the_same_each_time_and_its_features_are_normalised():
    one, other = (random_network(ModelConfig(conv_channels=32, hidden=64, layers=1, lookahead=2)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    recurrent = one.grus[0].recurrent.weight
    assert float(recurrent.detach().std()) == pytest.approx(64**-0.5, rel=0.05)
    assert float(one.features.scale.std()) > 0


def planned(section):
    """Cases of a full run on a GPU; nothing runs."""
    context = Context(torch.device("cuda"), FULL)
    return [case for case, _ in importlib.import_module(f"loadtest.benchmarks.gpu.sections.{section}").cases(context)]


def test_a_full_run_measures_every_figure_that_was_predicted():
    cases = {section: planned(section) for section in {each.section for each in predictions()}}
    unmeasured = [
        each.key for each in predictions() if not any(each.case.items() <= case.items() for case in cases[each.section])
    ]
    assert unmeasured == []


@pytest.mark.parametrize("section", [name for part in PARTS.values() for name in part])
def test_no_two_cases_of_a_section_are_the_same(section):
    cases = [json.dumps(case, sort_keys=True) for case in planned(section)]
    assert cases
    assert len(cases) == len(set(cases))
