"""Graphs with a fixed batch axis: size 1 is stepped row by row with the same results, other sizes are rejected."""

import shutil

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.acoustic import log_probs_of
from model.errors import PublishedModelError
from model.published.published_model import PublishedModel
from server.models.loading import load_served
from server.settings import Settings
from tests.support.needs import need_package
from tests.support.networks.published import model_of, probe_of


def fixed(folder, file, size):
    """Fix the named batch axis of every input and output of a graph."""
    onnx = need_package("onnx")
    path = folder / file
    graph = onnx.load(path)
    first = graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert first
    for value in (*graph.graph.input, *graph.graph.output, *graph.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == first:
                axis.dim_value = size
    onnx.save(graph, path)
    return folder


def copied(variant, folder):
    return shutil.copytree(probe_of(variant).folder, folder / variant)


def graph_name(folder):
    names = sorted(path.name for path in folder.glob("*.onnx"))
    return next((name for name in names if name.startswith("encoder")), names[0])


@pytest.mark.parametrize(
    "kind", ["zipformer2-ctc", "nemo-ctc", "t-one-ctc", "zipformer2-transducer", "nemo-buffered-transducer"]
)
def test_a_batch_axis_of_1_is_stepped_row_by_row_with_the_results_of_single_streams(kind, tmp_path):
    folder = copied(kind, tmp_path)
    model = PublishedModel.load(fixed(folder, graph_name(folder), 1), device="cpu", threads=2)
    assert model.contract.one_row
    assert (model.threads, model.undivided) == (1, "the graph has one row")
    rate = model.config.sample_rate
    recordings = [np.random.default_rng(seed).integers(-9_000, 9_000, rate * 2, dtype=np.int16) for seed in range(3)]
    together, plain = log_probs_of(model, recordings), log_probs_of(model_of(kind), recordings)
    for row, (recording, other) in enumerate(zip(recordings, plain, strict=True)):
        np.testing.assert_array_equal(together[row], log_probs_of(model, [recording])[0])
        np.testing.assert_allclose(together[row], other, atol=1e-3)


@pytest.mark.parametrize(("size", "said"), [(1, 1), (None, 0)])
def test_serving_a_graph_of_one_row_is_logged_at_the_start(size, said, tmp_path):
    folder = copied("zipformer2-ctc", tmp_path)
    if size is not None:
        fixed(folder, graph_name(folder), size)
    with capture_logs() as lines:
        (served,), _ = load_served(Settings(model=folder, device="cpu"))
        served.engines.warn_of_dependent_rows(reproducible=True)
    rows = [line for line in lines if "one at a time" in line["event"]]
    assert len(rows) == said
    for line in rows:
        assert (line["log_level"], line["model"]) == ("warning", served.facts.config.name)
        assert "capacity is lower" in line["event"]


def test_another_fixed_batch_size_is_rejected_with_one_message(tmp_path):
    folder = copied("zipformer2-ctc", tmp_path)
    with pytest.raises(PublishedModelError, match="its batch axis is fixed at 4; export it with a dynamic batch axis"):
        PublishedModel.load(fixed(folder, graph_name(folder), 4), device="cpu")


@pytest.mark.parametrize("role", ["decoder", "joiner"])
def test_a_decoder_or_joiner_of_one_row_is_rejected_with_one_message(role, tmp_path):
    folder = copied("zipformer2-transducer", tmp_path)
    name = next(path.name for path in folder.glob(f"{role}*.onnx"))
    with pytest.raises(PublishedModelError, match=rf"{name}: the batch axis of its input .* is fixed at 1"):
        PublishedModel.load(fixed(folder, name, 1), device="cpu")
