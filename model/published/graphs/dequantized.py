"""The graph in floats of a released graph in 8 bits, whose weights are the rounded ones.

`quantize_dynamic` of ONNX Runtime, with which released files are made, turns a product x W into DynamicQuantizeLinear,
MatMulInteger or ConvInteger, Cast, and Mul with both scales; an LSTM into DynamicQuantizeLSTM; a table into Gather of
bytes and, after nodes that move them, DequantizeLinear. The nodes keep their order, by which a compiled step reads its
weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.published.graphs.onnx_graph import Node, OnnxGraph

MOVES = frozenset({"Transpose", "Unsqueeze", "Squeeze", "Reshape", "Identity"})
"""Operations that change the shape of a value, and not its numbers."""
INTEGERS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""Products of integers, and the operations in floats that they stand for."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of integers: its source in floats, its weights, and the last node, which gives its result."""

    node: Node
    source: str
    weight: NDArray[np.float32]
    last: Node
    bias: NDArray[np.float32] | None  # of a convolution, whose sum is a node of its own


def dequantized(graph: OnnxGraph) -> OnnxGraph:
    """Return the graph with its products in floats; the graph itself if it has none in integers."""
    found = {each.last.output: each for node in graph.nodes if (each := _product(graph, node)) is not None}
    constants: dict[str, NDArray[Any]] = {}
    nodes = []
    for node in graph.nodes:
        if node.outputs and node.output in found:
            nodes.append(_in_floats(found[node.output], constants))
        elif node.op == "DynamicQuantizeLSTM":
            nodes.append(_lstm(graph, node, constants))
        elif node.op == "DequantizeLinear" and _with_table(graph, node, constants):
            nodes.append(Node("Identity", node.inputs[:1], node.outputs))
        else:
            nodes.append(node)
    if not constants:
        return graph
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **constants}).pruned()


def _lstm(graph: OnnxGraph, node: Node, constants: dict[str, NDArray[Any]]) -> Node:
    """Return the operation in floats, and add its weights to the constants."""
    inputs = list(node.inputs[:8])
    for position, scales in ((1, 8), (2, 10)):
        weight, scale, zero = (graph.constant(node.inputs[at]) for at in (position, scales, scales + 1))
        if weight is None or scale is None or zero is None:
            return node
        inputs[position] = f"{node.output}.{position}"
        floats = _floats(weight, _by_column(scale), _by_column(zero))
        constants[inputs[position]] = np.ascontiguousarray(floats.transpose(0, 2, 1))  # a session uses it where it is
    return Node("LSTM", tuple(inputs), node.outputs, node.attributes)


def _by_column(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of each direction, or of each direction and column, for weights (directions, rows, columns)."""
    return values.reshape(len(values), 1, -1)


def _with_table(graph: OnnxGraph, node: Node, constants: dict[str, NDArray[Any]]) -> bool:
    """Put floats in the place of a table whose rows this node turns into floats; return whether there is one."""
    gather = graph.producers.get(node.inputs[0])
    while gather is not None and gather.op in MOVES:
        gather = graph.producers.get(gather.inputs[0])
    table = graph.constant(gather.inputs[0]) if gather is not None and gather.op == "Gather" else None
    scale, zero = (graph.constant(name) for name in node.inputs[1:3])
    if gather is None or table is None or scale is None or zero is None or scale.size != 1:
        return False
    constants[gather.inputs[0]] = _floats(table, scale, zero)
    return True


def _floats(weight: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray((weight.astype(np.float32) - zero.astype(np.float32)) * scale, np.float32)


def _in_floats(product: _Product, constants: dict[str, NDArray[Any]]) -> Node:
    """Return the operation in floats, and add its weights to the constants."""
    inputs = [product.source, f"{product.last.output}.weight"]
    constants[inputs[1]] = product.weight
    if product.bias is not None:
        inputs.append(f"{product.last.output}.bias")
        constants[inputs[2]] = product.bias
    return Node(INTEGERS[product.node.op], tuple(inputs), product.last.outputs, product.node.attributes)


def _product(graph: OnnxGraph, node: Node) -> _Product | None:
    """Return the product of this node, with all that belongs to it, or None."""
    weight = graph.constant(node.inputs[1]) if node.op in INTEGERS else None
    quantize = graph.producers.get(node.inputs[0]) if weight is not None else None
    cast = graph.only_consumer(node.output)
    scaled = graph.only_consumer(cast.output) if cast is not None and cast.op == "Cast" else None
    if weight is None or quantize is None or quantize.op != "DynamicQuantizeLinear":
        return None
    if cast is None or scaled is None or scaled.op != "Mul":
        return None
    factor = graph.producers.get(_other(scaled, cast.output))
    if factor is None or factor.op != "Mul" or quantize.outputs[1] not in factor.inputs:
        return None
    scale = graph.constant(_other(factor, quantize.outputs[1]))
    if scale is None:
        return None
    zero = graph.constant(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else np.zeros((), weight.dtype)
    if zero is None:
        return None
    channels = (1,) * (weight.ndim - 1)
    if node.op == "ConvInteger" and scale.size > 1:
        scale, zero = scale.reshape(-1, *channels), zero.reshape(-1, *channels)
    last, bias = _with_bias(graph, scaled) if node.op == "ConvInteger" else (scaled, None)
    return _Product(node, quantize.inputs[0], _floats(weight, scale, zero), last, bias)


def _with_bias(graph: OnnxGraph, scaled: Node) -> tuple[Node, NDArray[np.float32] | None]:
    """Return the sum of a convolution with a reshaped constant, and that; or the node itself."""
    total = graph.only_consumer(scaled.output)
    if total is None or total.op != "Add":
        return scaled, None
    reshaped = graph.producers.get(_other(total, scaled.output))
    bias = graph.constant(reshaped.inputs[0]) if reshaped is not None and reshaped.op == "Reshape" else None
    return (scaled, None) if bias is None or bias.ndim != 1 else (total, bias)


def _other(node: Node, name: str) -> str:
    """Return the other input of a node with two."""
    return node.inputs[1] if node.inputs[0] == name else node.inputs[0]
