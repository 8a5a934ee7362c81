"""Constants of a Zipformer 2's graph by the operation that uses them, each kind in the order of the graph.

Exporters name weights by modules or not at all; the operations and their order are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.compiled.linears import Linear
from model.published.graphs.onnx_graph import Node, OnnxGraph

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Norm:
    """BiasNorm: x / rms(x - bias) * scale; bias (D,)."""

    bias: Floats
    scale: float


def require(condition: bool, reason: str) -> None:
    """Raise PublishedModelError with the reason if a graph is not as the compiled step needs it."""
    if not condition:
        raise PublishedModelError(reason)


class GraphConstants:
    """Constants of a graph by the operation that uses them, each kind in the order of the graph."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self._products = iter(self._all_products())
        self.convolutions = iter([node for node in graph.nodes if node.op == "Conv"])
        self.positions = iter([table for node in graph.nodes for table in self._position_table(node)])
        self.norms = iter([norm for node in graph.nodes for norm in self._norm(node)])
        self.bypasses = iter([scale for node in graph.nodes for scale in self._bypass(node)])
        self.downsamplings = iter([weights for node in graph.nodes for weights in self._downsampling(node)])

    def product(self, name: str, inputs: int, outputs: int | None) -> Linear:
        """Return the next product. Raises: PublishedModelError if it has another size."""
        weight, bias = next(self._products, (np.zeros((0, 0), np.float32), np.zeros(0, np.float32)))
        expected = (inputs, weight.shape[1] if outputs is None else outputs)
        require(weight.shape == expected and len(bias) == expected[1], f"{name} has weights of shape {weight.shape}")
        return Linear(name, weight, bias)

    def convolution(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Floats, Floats, Node]:
        """Return weights and bias of the next convolution. Raises: PublishedModelError if it is another one."""
        node = next(self.convolutions, None)
        require(node is not None and len(node.inputs) == 3, f"it has no convolution {shape} with a bias")
        assert node is not None
        weight, bias = (self.graph.constant(name) for name in node.inputs[1:])
        require(weight is not None and bias is not None, "weights of a convolution are computed")
        assert weight is not None
        assert bias is not None
        fits = weight.shape == shape and tuple(node.attributes.get("strides", strides)) == strides
        groups = node.attributes.get("group", 1)
        fits &= (groups == shape[0] if shape[1] == 1 and shape[0] != 8 else groups == 1) and len(bias) == shape[0]
        fits &= all(dilation == 1 for dilation in node.attributes.get("dilations", []))
        require(bool(fits), f"a convolution is {weight.shape} instead of {shape}")
        return np.asarray(weight, np.float32), np.asarray(bias, np.float32), node

    def edge(self, node: Node) -> Floats:
        """Return the scale (T, D) of a convolution within the chunk."""
        reader = self.graph.only_consumer(node.output)
        scale = self._constant_of(reader, node.output) if reader is not None and reader.op == "Mul" else None
        require(scale is not None and scale.ndim >= 2, "a convolution within the chunk has no scale of edges")
        assert scale is not None
        return np.ascontiguousarray(scale.reshape(scale.shape[-2:]).T, np.float32)

    def check_empty(self) -> None:
        """Raise: PublishedModelError if anything was not read."""
        kinds = (self._products, self.convolutions, self.positions, self.norms, self.bypasses, self.downsamplings)
        require(all(next(kind, None) is None for kind in kinds), "it has more weights than layers in its metadata")

    def _constant_of(self, node: Node | None, other: str) -> NDArray[Any] | None:
        """Return the constant operand of a node with two, the other being `other`."""
        if node is None or len(node.inputs) != 2 or other not in node.inputs:
            return None
        return self.graph.constant(node.inputs[1 - node.inputs.index(other)])

    def _all_products(self) -> Iterator[tuple[Floats, Floats]]:
        for node in self.graph.nodes:
            weight = self.graph.constant(node.inputs[1]) if node.op == "MatMul" else None
            if weight is None or weight.ndim != 2:
                continue
            reader = self.graph.only_consumer(node.output)
            bias = self._constant_of(reader, node.output) if reader is not None and reader.op == "Add" else None
            bias = np.zeros(weight.shape[1], np.float32) if bias is None or bias.ndim != 1 else bias
            yield np.asarray(weight, np.float32), np.asarray(bias, np.float32)

    def _position_table(self, node: Node) -> Iterator[Floats]:
        table = self.graph.constant(node.inputs[1]) if node.op == "MatMul" else None
        if table is not None and table.ndim in {3, 4}:
            yield np.asarray(table, np.float32).reshape(table.shape[0], *table.shape[-2:])

    def _norm(self, node: Node) -> Iterator[Norm]:
        """Yield the norm that begins with this node: Sub, Pow 2, ReduceMean, Pow -0.5, Mul by the scale."""
        graph = self.graph
        bias = graph.constant(node.inputs[1]) if node.op == "Sub" else None
        square = graph.only_consumer(node.output) if bias is not None and bias.ndim == 1 else None
        if bias is None or square is None or square.op != "Pow" or graph.number(square.inputs[1]) != 2:
            return
        names, following = [], square
        for _ in range(3):
            names.append(following.op)
            reader = graph.only_consumer(following.output)
            require(reader is not None, "a norm is used in several places")
            assert reader is not None
            previous, following = following.output, reader
        scale = self._constant_of(following, previous)
        power = graph.producers[previous]
        known = names == ["Pow", "ReduceMean", "Pow"] and following.op == "Mul" and scale is not None
        known = known and graph.number(power.inputs[1]) == -0.5
        require(known, "a norm has other operations than BiasNorm")
        assert scale is not None
        yield Norm(np.asarray(bias, np.float32), float(np.asarray(scale, np.float32).reshape(())))

    def _bypass(self, node: Node) -> Iterator[Floats]:
        """Yield the scales of before + (after - before) * scales, of the Mul."""
        if node.op != "Mul":
            return
        for position, name in enumerate(node.inputs):
            change = self.graph.producers.get(node.inputs[1 - position])
            scale, total = self.graph.constant(name), self.graph.only_consumer(node.output)
            if scale is not None and scale.ndim == 1 and change is not None and change.op == "Sub":
                known = total is not None and total.op == "Add" and change.inputs[1] in total.inputs
                require(known, "a bypass has other operations than those of Zipformer 2")
                yield np.asarray(scale, np.float32)

    def _downsampling(self, node: Node) -> Iterator[Floats]:
        """Yield the weights of frames that are added up, of the Mul."""
        reader = self.graph.only_consumer(node.output) if node.op == "Mul" else None
        if reader is None or reader.op != "ReduceSum":
            return
        for name in node.inputs:
            weights = self.graph.constant(name)
            if weights is not None:
                yield np.asarray(weights, np.float32).reshape(-1)
