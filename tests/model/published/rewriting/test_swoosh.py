"""Each form in which exporters write Swoosh is found, and its values stay."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from model.published.onnx_graph import OnnxGraph
from model.published.rewriting.swoosh import simplify_swoosh
from tests.support.networks.probes.graph import Graph

SHIFT, OFFSET = 4.0, 0.035


def logarithm(graph, y, form):
    """Add log(1 + exp(y)) in one of the forms."""
    one = np.float32(1)
    if form == "logaddexp":
        return graph("Log", graph("Add", one, graph("Exp", y)))
    if form == "where":
        logs = graph("Log", graph("Add", graph("Exp", y), one))
        return graph("Where", graph("Equal", logs, np.float32(np.inf)), y, logs)
    highest = graph("Max", y, np.float32(0))
    return graph("Add", highest, graph("Log", graph("Add", graph("Exp", graph("Neg", graph("Abs", y))), one)))


def swoosh_graph(form):
    graph = Graph("swoosh", 0)
    x = graph.input("x", ["N", 64])
    y = graph("Sub", x, np.float32(SHIFT))
    curve = graph("Sub", logarithm(graph, y, form), graph("Mul", x, np.float32(0.08)))
    graph.output(graph("Sub", curve, np.float32(OFFSET)), "out", ["N", 64])
    return OnnxGraph.read(graph.model({}))


def run(graph, x):
    session = onnxruntime.InferenceSession(graph.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("form", ["logaddexp", "where", "max"])
def test_every_form_is_found_and_keeps_its_values(form: str) -> None:
    graph = swoosh_graph(form)
    simpler = simplify_swoosh(graph)
    assert simpler is not graph
    assert not {"Where", "Abs", "Equal"} & {node.op for node in simpler.nodes}
    x = np.linspace(-60, 84, 128, dtype=np.float32).reshape(2, 64)
    assert np.abs(run(graph, x) - run(simpler, x)).max() < 1e-5


def test_large_inputs_do_not_overflow() -> None:
    x = np.full((1, 64), 1_000, np.float32)
    expected = 1_000 - SHIFT - 0.08 * 1_000 - OFFSET
    assert np.allclose(run(simplify_swoosh(swoosh_graph("where")), x), expected)


def test_another_function_is_left_alone() -> None:
    graph = Graph("other", 0)
    x = graph.input("x", ["N", 64])
    y = graph("Sub", x, np.float32(SHIFT))
    logs = graph("Log", graph("Add", graph("Exp", y), np.float32(2)))  # not log(1 + exp(y))
    curve = graph("Sub", logs, graph("Mul", x, np.float32(0.08)))
    graph.output(graph("Sub", curve, np.float32(OFFSET)), "out", ["N", 64])
    other = OnnxGraph.read(graph.model({}))
    assert simplify_swoosh(other) is other
