"""Products with constant weights in 8-bit integers: static scales of inputs, a scale per column of the weights.

The sums are exact integers, so that a row's outputs do not depend on the batch. Weights are within ±63: pairs of
products with inputs of 255 then fit into 16 bits, beyond which the AVX2 instruction `vpmaddubsw` saturates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.int8.quantized import LARGEST_INPUT, LARGEST_WEIGHT
from model.published.onnx_graph import Edit, Node, OnnxGraph

LEAST_SIZE = 32  # inputs and outputs: smaller products gain nothing
DOMAIN = "com.microsoft"  # of the operators that ONNX Runtime adds

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Product:
    """A product x W of the graph, with its weights (K, O)."""

    node: Node
    weight: Floats

    @property
    def name(self) -> str:
        """Name by which the file of scales calls it: that of its output."""
        return self.node.output


@dataclass(frozen=True, slots=True)
class Scale:
    """Step and zero point of 8-bit inputs: x = step * (byte - zero)."""

    step: float
    zero: int

    @classmethod
    def of(cls, low: float, high: float) -> Scale:
        """Return the scale for inputs between two values; it contains 0 exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        step = max((high - low) / LARGEST_INPUT, 1e-12)
        return cls(step, round(-low / step))

    def bytes_of(self, x: Floats) -> NDArray[np.uint8]:
        """Round to bytes, halves to even as ONNX does."""
        rounded = np.rint(x / np.float32(self.step)) + self.zero
        return np.asarray(np.clip(rounded, 0, LARGEST_INPUT), np.uint8)


def digest_of_weights(weight: Floats) -> str:
    """Return the digest of weights (K, O), by which a scale finds its product in any form of the network."""
    return hashlib.sha256(np.ascontiguousarray(weight, np.float32).tobytes()).hexdigest()


def products_of(graph: OnnxGraph) -> list[Product]:
    """Return the products that can be quantized, in the order of the graph."""
    found = []
    for node in graph.nodes:
        weight = graph.constant(node.inputs[1]) if node.op == "MatMul" else None
        if weight is not None and weight.ndim == 2 and min(weight.shape) >= LEAST_SIZE and weight.dtype == np.float32:
            found.append(Product(node, weight))
    return found


def quantized_weights(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return the weights (K, O) as integers within ±63, and the step of each column (O,)."""
    steps = np.maximum(np.abs(weight).max(axis=0), 1e-12).astype(np.float32) / np.float32(LARGEST_WEIGHT)
    return np.rint(weight / steps).astype(np.int8), steps


def quantize_products(graph: OnnxGraph, scales: Mapping[str, Scale]) -> OnnxGraph:
    """Return the graph with the named products in 8-bit integers. Raises: KeyError for a product that is not there."""
    edit = Edit(graph, "int8")
    by_name = {product.name: product for product in products_of(graph)}
    shared: dict[tuple[str, Scale], tuple[str, str, str]] = {}
    for name, scale in scales.items():
        product = by_name[name]
        source = product.node.inputs[0]
        if (source, scale) not in shared:  # several products may read the same input
            step, zero = edit.constant(scale.step), edit.constant(scale.zero, "uint8")
            shared[source, scale] = edit("QuantizeLinear", source, step, zero), step, zero
        values, step, zero = shared[source, scale]
        weight, steps = quantized_weights(product.weight)
        packed, columns = edit.constant(weight, "int8"), edit.constant(steps)
        inputs = (values, packed, step, columns, zero)
        edit("MatMulIntegerToFloat", *inputs, output=name, domain=DOMAIN)
    return edit.done().with_opset(DOMAIN, 1)
