"""Convolutions over time as products: ONNX Runtime computes those of one dimension far below the machine's speed.

A convolution with a kernel of one frame is a product. A depthwise one over few frames is a product per channel, of a
matrix (S, T) with the kernel in each row and the frames (T, N).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.published.onnx_graph import Edit, Node, OnnxGraph
from model.published.rewriting.folding import shapes_of

Floats = NDArray[np.float32]

LONGEST = 64  # frames: the matrix of a longer convolution would mostly be zeros


@dataclass(frozen=True, slots=True)
class _Depthwise:
    """A depthwise convolution, and its kernels (C, K)."""

    node: Node
    kernels: Floats

    @property
    def source(self) -> str:
        return self.node.inputs[0]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A convolution of all frames, one of the last ones, and matrices (C, S, T) and bias (C, S, 1) of their sum."""

    whole: _Depthwise
    part: _Depthwise
    matrix: Floats
    bias: Floats


def pointwise_as_products(graph: OnnxGraph) -> OnnxGraph:
    """Replace convolutions with a kernel of one frame, (N, C, T) -> (N, O, T), or of one bin, (N, C, T, F). Rounds."""
    edit = Edit(graph, "pointwise")
    for node in graph.nodes:
        weight = _weight(graph, node, axes=(1, 2))
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


def depthwise_as_products(graph: OnnxGraph) -> OnnxGraph:
    """Replace depthwise convolutions over at most `LONGEST` frames, and sums of two of them. Rounds."""
    found = [
        _Depthwise(node, weight[:, 0]) for node in graph.nodes if (weight := _depthwise_weight(graph, node)) is not None
    ]
    if not found:
        return graph
    shapes = shapes_of(graph, [each.source for each in found])
    frames = {each.source: shapes[each.source][2] for each in found}
    by_output = {each.node.output: each for each in found if frames[each.source] <= LONGEST}
    edit = Edit(graph, "depthwise")
    for node in graph.nodes:
        if (pair := _pair(graph, node, by_output, frames)) is not None:
            _add_product(edit, pair.whole.source, pair.matrix, pair.bias, node.output)
            del by_output[pair.whole.node.output], by_output[pair.part.node.output]
    for output, each in by_output.items():
        matrix = kernel_matrices(each.kernels, frames[each.source], _pads(each.node))
        _add_product(edit, each.source, matrix, _bias(graph, each.node), output)
    return edit.done() if edit.changed else graph


def _add_product(edit: Edit, source: str, matrix: Floats, bias: Floats | None, output: str) -> None:
    """Multiply frames (N, C, T) by matrices (C, S, T); bias (C, 1 or S, 1). The output is (N, C, S)."""
    channels, _, frames = matrix.shape
    by_channel = edit("Transpose", source, perm=[1, 2, 0])  # (C, T, N)
    # A column of zeros after the rows: a product with one column may be computed in another order.
    padded = edit("Concat", by_channel, edit.constant(np.zeros((channels, frames, 1))), axis=2)
    product = edit("MatMul", edit.constant(matrix), padded)  # (C, S, N + 1)
    if bias is not None:
        product = edit("Add", product, edit.constant(bias))
    rows = edit("Slice", product, *(edit.constant([value], "int64") for value in (0, -1, 2)))
    edit("Transpose", rows, perm=[2, 0, 1], output=output)


def _pair(
    graph: OnnxGraph, total: Node, convolutions: Mapping[str, _Depthwise], frames: Mapping[str, int]
) -> _Pair | None:
    """Return the two convolutions whose sum a node is, over all frames and over the last ones, or None.

    Zipformers add a causal convolution of cached and new frames to one of the new frames alone, scaled near its ends.
    """
    if total.op != "Add":
        return None
    for first, second in (total.inputs, total.inputs[::-1]):
        scaled = graph.producers.get(second)
        if scaled is None or scaled.op != "Mul" or (scale := graph.constant(scaled.inputs[1])) is None:
            continue
        whole, part = convolutions.get(first), convolutions.get(scaled.inputs[0])
        if (
            whole is None
            or part is None
            or any(graph.only_consumer(each.node.output) is None for each in (whole, part))
        ):
            continue
        cut = graph.producers.get(part.source)
        if (
            cut is None
            or cut.op != "Slice"
            or cut.inputs[0] != whole.source
            or graph.ints(cut.inputs[3]) not in {(2,), (-1,)}
        ):
            continue
        matrix = kernel_matrices(whole.kernels, frames[whole.source], _pads(whole.node))
        other = kernel_matrices(part.kernels, frames[part.source], _pads(part.node))
        start = graph.ints(cut.inputs[1])
        if start is None or scale.shape != other.shape[:2] or start[0] + frames[part.source] != frames[whole.source]:
            continue
        if matrix.shape[1] != other.shape[1]:
            continue
        matrix = matrix.copy()
        matrix[:, :, start[0] :] += scale[:, :, np.newaxis] * other
        bias = np.zeros((*matrix.shape[:2], 1), np.float32)
        for term, factor in ((whole, np.float32(1)), (part, scale[:, :, np.newaxis])):
            if (own := _bias(graph, term.node)) is not None:
                bias = bias + factor * own
        return _Pair(whole, part, matrix, bias)
    return None


def kernel_matrices(kernels: Floats, frames: int, pads: tuple[int, int] = (0, 0)) -> Floats:
    """Return for each kernel (C, K) the matrix (S, frames): in each row the kernel, one place later.

    `pads`: frames of zeros before and after those that are there; S = frames + pads - K + 1.
    """
    channels, length = kernels.shape
    total = pads[0] + frames + pads[1]
    matrix = np.zeros((channels, total - length + 1, total), np.float32)
    for row in range(matrix.shape[1]):
        matrix[:, row, row : row + length] = kernels
    return matrix[:, :, pads[0] : pads[0] + frames]


def _pads(node: Node) -> tuple[int, int]:
    before, after = node.attributes.get("pads", (0, 0))
    return before, after


def _weight(graph: OnnxGraph, node: Node, axes: Sequence[int] = (1,)) -> Floats | None:
    """Return the constant weights (O, C / groups, K, …) of a convolution with stride 1; `axes`: numbers of axes."""
    if node.op != "Conv" or (weight := graph.constant(node.inputs[1])) is None or weight.ndim - 2 not in axes:
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


def _depthwise_weight(graph: OnnxGraph, node: Node) -> Floats | None:
    weight = _weight(graph, node)
    if weight is None or weight.shape[1] != 1 or weight.shape[2] == 1:
        return None
    return weight if node.attributes.get("group", 1) == len(weight) > 1 else None


def _bias(graph: OnnxGraph, node: Node) -> Floats | None:
    """Return the bias of a convolution, (C, 1, 1)."""
    return np.asarray(graph.constants[node.inputs[2]]).reshape(-1, 1, 1) if len(node.inputs) > 2 else None
