"""Products in 8-bit integers: exact sums within ±63, whatever the batch; other numbers stay."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from model.errors import PublishedModelError
from model.published.onnx_graph import OnnxGraph
from model.published.products import Scale, products_of, quantize_products, quantized_weights
from model.published.scales import FILE, Scales
from tests.support.networks.probes.graph import Graph

INPUTS, OUTPUTS = 64, 48


def product_graph():
    graph = Graph("product", 3)
    x = graph.input("x", ["N", INPUTS])
    y = graph("MatMul", x, graph.weight(INPUTS, OUTPUTS))
    graph.output(graph("Add", y, graph.weight(OUTPUTS)), "out", ["N", OUTPUTS])
    return OnnxGraph.read(graph.model({}))


def run(graph, x):
    session = onnxruntime.InferenceSession(graph.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_weights_are_within_63_and_their_columns_have_scales_of_their_own() -> None:
    weight = np.random.default_rng(1).standard_normal((INPUTS, OUTPUTS)).astype(np.float32) * np.arange(1, OUTPUTS + 1)
    rounded, steps = quantized_weights(weight.astype(np.float32))
    assert np.abs(rounded).max() == 63
    assert (np.abs(rounded).max(axis=0) == 63).all()
    assert np.abs(rounded * steps - weight).max(axis=0) == pytest.approx(steps / 2, rel=0.3)


def test_outputs_are_those_of_integer_sums_and_do_not_depend_on_the_batch() -> None:
    graph = product_graph()
    (product,) = products_of(graph)
    scale = Scale.of(-3.0, 2.0)
    integers = quantize_products(graph, {product.name: scale})
    x = np.random.default_rng(2).uniform(-4, 3, (5, INPUTS)).astype(np.float32)  # some beyond the range
    together = run(integers, x)
    for row in range(len(x)):
        assert np.array_equal(run(integers, x[row : row + 1])[0], together[row])
    weight, steps = quantized_weights(product.weight)
    sums = (scale.bytes_of(x).astype(np.int64) - scale.zero) @ weight.astype(np.int64)
    bias = next(value for value in graph.constants.values() if value.shape == (OUTPUTS,))
    assert np.allclose(together, sums * (steps * np.float32(scale.step)) + bias, atol=1e-4)
    assert np.abs(together - run(graph, x.clip(-3, 2))).max() < 0.2


def test_a_scale_contains_zero_exactly() -> None:
    for low, high in ((0.5, 2.0), (-2.0, -0.5), (-1.0, 3.0), (0.0, 0.0)):
        scale = Scale.of(low, high)
        assert scale.bytes_of(np.zeros(1, np.float32))[0] == scale.zero


def test_scales_are_read_as_written_and_belong_to_one_graph(tmp_path):
    graph = product_graph()
    (product,) = products_of(graph)
    scales = Scales(
        "digest",
        "files",
        {product.name: Scale.of(-1, 1)},
        {product.name: "weights"},
        ("other",),
        {"wer_to_floats": 0.01},
    )
    scales.write(tmp_path)
    assert Scales.read(tmp_path) == scales
    assert Scales.read(tmp_path / "none") is None
    assert scales.by_weights == {"weights": Scale.of(-1, 1)}
    scales.applied(graph, "digest")
    with pytest.raises(PublishedModelError, match="written for other files, other rewrites or another version"):
        scales.applied(graph, "another")
    with pytest.raises(PublishedModelError, match="written for other files, other rewrites or another version"):
        Scales("digest", "files", {"missing": Scale.of(-1, 1)}, {"missing": "weights"}).applied(graph, "digest")


@pytest.mark.parametrize("damage", ["{", "[]", '{"version": 2}', '{"version": 2, "products": {"a": 1}}'])
def test_a_damaged_file_of_scales_is_named_with_what_to_do(damage, tmp_path):
    (tmp_path / FILE).write_text(damage)
    with pytest.raises(PublishedModelError, match=rf"{FILE} cannot be read .* run `tutti quantize` again"):
        Scales.read(tmp_path)


def test_scales_of_another_version_are_refused(tmp_path):
    path = Scales("digest", "files", {}, {}).write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}))
    with pytest.raises(PublishedModelError, match="has version 9, this program reads 2"):
        Scales.read(tmp_path)
