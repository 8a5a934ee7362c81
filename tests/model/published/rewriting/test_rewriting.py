"""Rewritten graphs: the results are those of the published graph, and what differs is undone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from model.errors import PublishedModelError
from model.published.folding import fold_shapes
from model.published.onnx_graph import OnnxGraph
from model.published.published_model import PublishedModel
from model.published.rewriting import rewriting
from model.published.rewriting.key_value_caches import cache_keys_and_values
from model.published.rewriting.verification import TOLERANCE
from model.published.rows import check_rows, speech
from tests.support.networks.probes import make_probe

SHAPES, CACHES, POINTWISE = (each.name for each in rewriting.REWRITES)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the folder of a FastConformer with the nodes of a released one."""
    return Path(make_probe("nemo-ctc", tmp_path_factory.mktemp("exported"), size="exported").folder)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """Keep the verdicts nowhere."""
    monkeypatch.setattr(rewriting, "cache_dirs", lambda _: ())


def load(folder, mode):
    return PublishedModel.load(folder, device="cpu", rewriting=mode)


def applied(model):
    return [each.name for each in model.rewrites if each.applied]


def outputs_of(model, rows=3, windows=50):
    """Return outputs (B, T, V) of a batch of streams."""
    slots = model.slots(capacity=rows, largest=rows)
    audio = speech(model.config, rows, windows)
    found = []
    for step in range(audio.shape[1]):
        slots.inputs[:rows] = audio[:, step]
        found.append(slots.run(range(rows)))
    return np.concatenate(found, axis=1)[:, model.config.delay_frames :]


def test_exact_rewrites_keep_every_bit_of_a_fastconformer(exported: Path, monkeypatch) -> None:
    monkeypatch.setattr(rewriting, "REWRITES", tuple(each for each in rewriting.REWRITES if each.exact))
    published, exact = load(exported, "off"), load(exported, "auto")
    assert applied(published) == []
    assert applied(exact) == [SHAPES, CACHES]
    assert np.array_equal(outputs_of(published), outputs_of(exact))


def test_all_rewrites_of_a_fastconformer_keep_its_symbols(exported: Path) -> None:
    published, model = load(exported, "off"), load(exported, "auto")
    assert applied(model) == [SHAPES, CACHES, POINTWISE]
    one, other = outputs_of(published), outputs_of(model)
    assert np.array_equal(one.argmax(-1), other.argmax(-1))
    assert np.abs(one - other).max() < TOLERANCE


def test_all_rewrites_of_a_zipformer_keep_its_symbols(tmp_path):
    folder = Path(make_probe("zipformer2-ctc", tmp_path, size="exported").folder)
    published, model = load(folder, "off"), load(folder, "auto")
    assert applied(model) == [SHAPES, POINTWISE]
    one, other = outputs_of(published), outputs_of(model)
    assert np.array_equal(one.argmax(-1), other.argmax(-1))
    assert check_rows(model, model.tokens.blank).dependent_bits == ()
    source = rewriting.read_graph(model.graph.path, published.contract)
    for rewrite in rewriting.REWRITES:
        source = rewrite.apply(source)
    left = [source.constants[node.inputs[1]].shape for node in source.nodes if node.op == "Conv"]
    assert all(max(shape[2:]) > 1 for shape in left), "a convolution of one frame or bin was not found"


def test_no_step_projects_cached_frames_or_computes_a_shape(exported: Path) -> None:
    source = rewriting.read_graph(exported / "model.onnx", load(exported, "off").contract)
    before = Counter(node.op for node in source.nodes)
    for rewrite in rewriting.REWRITES:
        source = rewrite.apply(source)
    after = Counter(node.op for node in source.nodes)
    assert before["Conv"] > after["Conv"]
    assert after["Shape"] < before["Shape"]
    assert sum(after.values()) < 0.8 * sum(before.values())
    assert not [node for node in source.nodes if node.op == "MatMul" and joins_cache(source, node)]
    assert "cache_last_channel" not in {each.name for each in source.inputs}


def joins_cache(graph, node):
    """Whether a product with constant weights reads a Concat with a state."""
    producer = graph.producers.get(node.inputs[0])
    constant = graph.constant(node.inputs[1]) is not None
    return constant and producer is not None and producer.op == "Concat" and producer.attributes.get("axis") == 1


def test_the_digest_differs_by_the_applied_rewrites(exported: Path, monkeypatch) -> None:
    published, model = load(exported, "off"), load(exported, "auto")
    assert published.digest == published.files.digest()
    assert model.config.version == model.digest[:12]
    monkeypatch.setattr(rewriting, "REWRITES", rewriting.REWRITES[:-1])
    assert len({published.digest, model.digest, load(exported, "auto").digest}) == 3


def shifted(graph, by):
    """Return the graph with one element of the last bias changed."""
    name = next(
        name for node in reversed(graph.nodes) for name in node.inputs if node.op == "Add" and name in graph.constants
    )
    changed = np.array(graph.constants[name])
    changed.flat[0] += np.float32(by)
    return replace(graph, constants={**graph.constants, name: changed})


def cut_off(graph):
    """Return the graph without its first node."""
    return replace(graph, nodes=graph.nodes[1:])


@pytest.mark.parametrize(
    ("exact", "function", "reason"),
    [
        (True, lambda graph: shifted(graph, 1e-5), "a bit of the results differs"),
        (False, lambda graph: shifted(graph, 0.1), "the results differ too much"),
        (False, cut_off, "the result does not run: "),
    ],
)
def test_a_rewrite_that_changes_results_is_undone(exported, monkeypatch, exact, function, reason):
    bad = rewriting.Rewrite("bad", exact, function)
    monkeypatch.setattr(rewriting, "REWRITES", (bad, *rewriting.REWRITES))
    model = load(exported, "auto")
    assert not model.rewrites[0].applied
    assert model.rewrites[0].reason.startswith(reason)
    assert applied(model) == [SHAPES, CACHES, POINTWISE]


def test_verdicts_are_cached_in_the_folder_and_used(exported, monkeypatch, tmp_path):
    monkeypatch.setattr(rewriting, "cache_dirs", lambda _: (Path("/proc/none"), tmp_path))
    first = load(exported, "auto")
    (kept,) = tmp_path.iterdir()
    assert [each["name"] for each in json.loads(kept.read_text())] == [each.name for each in first.rewrites]
    monkeypatch.setattr(rewriting, "outcome_of", None)  # a comparison would fail
    again = load(exported, "auto")
    assert again.rewrites == first.rewrites
    assert np.array_equal(outputs_of(first), outputs_of(again))
    kept.write_text("{damaged")
    with pytest.raises(TypeError):
        load(exported, "auto")


def test_quantized_graphs_and_graphs_with_branches_stay_as_they_are(tmp_path):
    folder = Path(make_probe("nemo-ctc", tmp_path, quantized=True).folder)
    model = load(folder, "auto")
    assert {each.reason for each in model.rewrites} == {"it is quantized"}
    branch = onnx.helper.make_graph([], "branch", [], [])
    node = onnx.helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    graph = onnx.helper.make_graph([node], "graph", [], [])
    with pytest.raises(PublishedModelError, match="a node If with graphs of its own"):
        OnnxGraph.read(onnx.helper.make_model(graph))


def test_a_graph_without_shapes_to_fold_is_returned_unchanged(tmp_path):
    source = OnnxGraph.read(onnx.load(make_probe("t-one-ctc", tmp_path).model))
    assert fold_shapes(source) is source


def test_a_graph_without_cached_frames_is_returned_unchanged(tmp_path):
    probe = make_probe("zipformer2-ctc", tmp_path)
    source = OnnxGraph.read(onnx.load(probe.model))
    assert cache_keys_and_values(source) is source
