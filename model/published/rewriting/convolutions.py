"""Convolutions over time as products: ONNX Runtime computes those of one dimension far below the machine's speed.

A convolution with a kernel of one frame is a product. A depthwise one over few frames is a product per channel, of a
matrix (S, T) with the kernel in each row and the frames (T, N).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.published.rewriting.folding import values_of
from model.published.rewriting.onnx_graph import Edit, Node, OnnxGraph

LONGEST = 64  # frames: the matrix of a longer convolution would mostly be zeros


def pointwise_as_products(graph: OnnxGraph) -> OnnxGraph:
    """Replace convolutions with a kernel of one frame, (N, C, T) -> (N, O, T). Rounds."""
    edit = Edit(graph, "pointwise")
    for node in graph.nodes:
        weight = _weight(graph, node)
        if weight is None or weight.shape[2] != 1 or node.attributes.get("group", 1) != 1:
            continue
        product = edit("MatMul", edit("Transpose", node.inputs[0], perm=[0, 2, 1]), edit.constant(weight[:, :, 0].T))
        if len(node.inputs) > 2:
            product = edit("Add", product, node.inputs[2])
        edit("Transpose", product, perm=[0, 2, 1], output=node.output)
    return edit.done() if edit.changed else graph


def depthwise_as_products(graph: OnnxGraph) -> OnnxGraph:
    """Replace depthwise convolutions over at most `LONGEST` frames without padding. Rounds."""
    found = [
        node for node in graph.nodes if (weight := _weight(graph, node)) is not None and _is_depthwise(node, weight)
    ]
    if not found:
        return graph
    (seen,) = values_of(graph, [node.inputs[0] for node in found], rows=[2])
    edit = Edit(graph, "depthwise")
    for node in found:
        frames, weight = seen[node.inputs[0]].shape[2], _weight(graph, node)
        if weight is None or frames > LONGEST:
            continue
        by_channel = edit("Transpose", node.inputs[0], perm=[1, 2, 0])  # (C, T, N)
        # A column of zeros after the rows: a product with one column may be computed in another order.
        padded = edit("Concat", by_channel, edit.constant(np.zeros((len(weight), frames, 1))), axis=2)
        product = edit("MatMul", edit.constant(kernel_matrices(weight[:, 0], frames)), padded)  # (C, S, N + 1)
        if len(node.inputs) > 2:
            bias = np.asarray(graph.constants[node.inputs[2]]).reshape(-1, 1, 1)
            product = edit("Add", product, edit.constant(bias))
        rows = edit("Slice", product, *(edit.constant([value], "int64") for value in (0, -1, 2)))
        edit("Transpose", rows, perm=[2, 0, 1], output=node.output)
    return edit.done() if edit.changed else graph


def kernel_matrices(kernels: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Return for each kernel (C, K) the matrix (frames - K + 1, frames): in each row the kernel, one place later."""
    channels, length = kernels.shape
    matrix = np.zeros((channels, frames - length + 1, frames), np.float32)
    for row in range(matrix.shape[1]):
        matrix[:, row, row : row + length] = kernels
    return matrix


def _weight(graph: OnnxGraph, node: Node) -> NDArray[np.float32] | None:
    """Return the constant weights (O, C / groups, K) of a convolution over time with stride 1 and no padding."""
    if node.op != "Conv" or (weight := graph.constant(node.inputs[1])) is None or weight.ndim != 3:
        return None
    if len(node.inputs) > 2 and graph.constant(node.inputs[2]) is None:
        return None
    given = node.attributes
    plain = (
        not any(given.get("pads", ()))
        and set(given.get("strides", ())) <= {1}
        and set(given.get("dilations", ())) <= {1}
        and given.get("auto_pad", b"NOTSET") in {b"NOTSET", b"VALID"}
    )
    return weight if plain else None


def _is_depthwise(node: Node, weight: NDArray[np.float32]) -> bool:
    return bool(node.attributes.get("group", 1) == weight.shape[0] > 1 == weight.shape[1] and weight.shape[2] > 1)
