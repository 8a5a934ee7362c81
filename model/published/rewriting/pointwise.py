"""Convolutions with a kernel of one frame as products, which ONNX Runtime computes faster and `quantization` rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.published.onnx_graph import Edit, Node, OnnxGraph

Floats = NDArray[np.float32]


def pointwise_as_products(graph: OnnxGraph) -> OnnxGraph:
    """Replace convolutions with a kernel of one frame, (N, C, T) -> (N, O, T), or of one bin, (N, C, T, F). Rounds."""
    edit = Edit(graph, "pointwise")
    for node in graph.nodes:
        weight = _weight(graph, node)
        if weight is None or any(size != 1 for size in weight.shape[2:]):
            continue
        if node.attributes.get("group", 1) != 1 or any(node.attributes.get("pads", ())):
            continue
        last, first = ([0, *range(2, weight.ndim), 1], [0, weight.ndim - 1, *range(1, weight.ndim - 1)])
        matrix = edit.constant(weight.reshape(weight.shape[:2]).T)
        product = edit("MatMul", edit("Transpose", node.inputs[0], perm=last), matrix)
        if len(node.inputs) > 2:
            product = edit("Add", product, node.inputs[2])
        edit("Transpose", product, perm=first, output=node.output)
    return edit.done() if edit.changed else graph


def _weight(graph: OnnxGraph, node: Node) -> Floats | None:
    """Return the constant weights (O, C, K, …) of a convolution of one or two axes with stride 1."""
    if node.op != "Conv" or (weight := graph.constant(node.inputs[1])) is None or weight.ndim not in {3, 4}:
        return None
    if len(node.inputs) > 2 and graph.constant(node.inputs[2]) is None:
        return None
    given = node.attributes
    plain = (
        set(given.get("strides", ())) <= {1}
        and set(given.get("dilations", ())) <= {1}
        and given.get("auto_pad", b"NOTSET") in {b"NOTSET", b"VALID"}
    )
    return weight if plain else None
