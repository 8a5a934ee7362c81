"""Shapes of values in a graph, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.published.published_model import PublishedModel
from model.published.rewriting import folding
from model.published.rewriting.folding import shapes_of, values_of
from model.published.rewriting.rewriting import fold_shapes, read_graph
from tests.support.networks.probes import make_probe


@pytest.mark.parametrize("kind", ["nemo-ctc", "zipformer2-ctc"])
def test_shapes_are_inferred_as_the_graph_has_them_without_a_session(kind, tmp_path: Path, monkeypatch) -> None:
    folder = make_probe(kind, tmp_path, size="exported").folder
    model = PublishedModel.load(Path(folder), device="cpu", precision="fp32", rewriting="off")
    graph = fold_shapes(read_graph(model.graph.path, model.contract))
    names = [node.inputs[0] for node in graph.nodes if node.op == "Conv"]
    (values,) = values_of(graph, names, rows=[2])

    monkeypatch.setattr(folding, "values_of", None)
    shapes = shapes_of(graph, names)

    assert names
    assert {name: shapes[name][2] for name in names} == {name: values[name].shape[2] for name in names}
