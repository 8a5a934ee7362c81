"""Weights of a transducer's decoder and joiner, read from published graphs by their structure.

A decoder is an LSTM (NeMo's prediction network) or reads the last symbols (icefall's stateless decoder). The joiner
adds a frame and the decoder's output, each after a linear layer if it has one, and scores the symbols from an
activation of the sum. Source: NeMo's RNNTDecoder and RNNTJoint, icefall's Decoder and Joiner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.int8.vectors import LANES
from model.published.compiled.linears import Linear
from model.published.graphs.dequantized import MOVES
from model.published.graphs.onnx_graph import Node, OnnxGraph

Floats = NDArray[np.float32]
ACTIVATIONS = ("Relu", "Tanh")  # of the joiner
GATES = 4  # of an LSTM: input, output, forget, cell, in the order of ONNX


@dataclass(frozen=True, slots=True)
class TransducerWeights:
    """Everything that decoder and joiner read.

    `prediction`: inputs (K, 4 H) and state (H, 4 H) of each LSTM layer, or the layer that reads the last `context`
    symbols, (context * E, P) in the order of time, with ReLU; `context` is 0 for an LSTM. `history` and `frames` map
    the decoder's output and an encoder's frame to the joiner's width; None if the graphs have no such layer. The scores
    are padded to whole vectors.
    """

    embedding: Floats  # (V, E)
    context: int
    prediction: tuple[Linear, ...]
    history: Linear | None
    frames: Linear | None
    scores: Linear  # (J, padded V)
    activation: str  # of `ACTIVATIONS`
    symbols: int

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        mapped = (linear for linear in (self.history, self.frames) if linear is not None)
        return (*self.prediction, *mapped, self.scores)

    @property
    def joined(self) -> int:
        """Width of the joiner."""
        return int(self.scores.weight.shape[0])

    @property
    def layers(self) -> int:
        """Layers of the LSTM, 0 without one."""
        return 0 if self.context else len(self.prediction) // 2

    @property
    def hidden(self) -> int:
        """Width of the LSTM, 0 without one."""
        return 0 if self.context else int(self.prediction[1].weight.shape[0])

    def with_linears(self, linears: Iterable[Linear]) -> TransducerWeights:
        """Return the same with other layers, in the order of `linears`."""
        rest = list(linears)
        prediction = tuple(rest.pop(0) for _ in self.prediction)
        history = None if self.history is None else rest.pop(0)
        frames = None if self.frames is None else rest.pop(0)
        return replace(self, prediction=prediction, history=history, frames=frames, scores=rest.pop(0))


def read_transducer(decoder: OnnxGraph, joiner: OnnxGraph, *, recurrent: bool) -> TransducerWeights:
    """Read both graphs. Raises: PublishedModelError with the reason if they are other networks."""
    scores, frames, history, activation = _joiner(joiner)
    context, symbols = 0, scores.weight.shape[1]
    if recurrent:
        embedding, prediction = _embedding(decoder), tuple(_lstm(decoder))
    else:
        context, embedding, prediction, projection = _stateless(decoder)
        if history is not None and projection is not None:
            raise PublishedModelError("both decoder and joiner project the decoder's output")
        history = history or projection
    weights = TransducerWeights(embedding, context, prediction, history, frames, scores.widened(), activation, symbols)
    _check(weights)
    return weights


def _joiner(graph: OnnxGraph) -> tuple[Linear, Linear | None, Linear | None, str]:
    """Return the layer of the scores, those of the frame and of the decoder's output, and the activation."""
    name = graph.output_names[0]
    last = _behind(graph, name)
    if last is not None and last.op == "LogSoftmax":  # which changes no order
        name = last.inputs[0]
    scores = _linear(graph, name, "joiner scores")
    active = None if scores is None else _behind(graph, scores[1])
    if scores is None or active is None or active.op not in ACTIVATIONS:
        raise PublishedModelError("the joiner is not a linear layer after ReLU or tanh")
    total = _behind(graph, active.inputs[0])
    if total is None or total.op != "Add":
        raise PublishedModelError("the joiner does not add a frame and the decoder's output")
    parts: dict[str, Linear | None] = {}
    for name in total.inputs:
        linear = _linear(graph, name, "joiner part")
        parts[_moved(graph, name if linear is None else linear[1])] = None if linear is None else linear[0]
    inputs = [declared.name for declared in graph.inputs]
    if sorted(parts) != sorted(inputs):
        raise PublishedModelError("the joiner does not add a frame and the decoder's output")
    frame, history = (
        None if part is None else replace(part, name=title)
        for part, title in zip((parts[name] for name in inputs), ("joiner frames", "joiner history"), strict=True)
    )
    return scores[0], frame, history, active.op


def _embedding(graph: OnnxGraph) -> Floats:
    tables = [graph.constant(node.inputs[0]) for node in graph.nodes if node.op == "Gather"]
    rows = [table for table in tables if table is not None and table.ndim == 2 and table.dtype == np.float32]
    if len(rows) != 1:
        raise PublishedModelError(f"the decoder has {len(rows)} tables of symbols")
    return rows[0]


def _lstm(graph: OnnxGraph) -> list[Linear]:
    """Return inputs and state of each layer."""
    linears = []
    for number, node in enumerate(node for node in graph.nodes if node.op == "LSTM"):
        inward, backward, bias = (graph.constant(name) if name else None for name in (*node.inputs, "")[1:4])
        others = node.attributes.keys() - {"hidden_size", "direction"}
        if others or node.attributes.get("direction", b"forward") != b"forward" or any(node.inputs[7:]):
            raise PublishedModelError(f"an LSTM has {', '.join(sorted(others)) or 'a direction or peepholes'}")
        if inward is None or backward is None or inward.ndim != 3 or len(inward) != 1:
            raise PublishedModelError("an LSTM has no constant weights")
        hidden = backward.shape[2]
        offset = np.zeros((2, GATES * hidden), np.float32) if bias is None else bias.reshape(2, -1)
        both = ((f"prediction {number} inputs", inward, offset.sum(0)), (f"prediction {number} state", backward, None))
        for name, weight, total in both:
            floats = np.ascontiguousarray(weight[0].T, np.float32)
            linears.append(Linear(name, floats, np.zeros(GATES * hidden, np.float32) if total is None else total))
    if not linears:
        raise PublishedModelError("the decoder has no LSTM")
    return linears


def _stateless(graph: OnnxGraph) -> tuple[int, Floats, tuple[Linear, ...], Linear | None]:
    """Return the number of symbols that it reads, the embedding, its layer, and the projection of its output."""
    name = graph.output_names[0]
    projection = _linear(graph, name, "decoder outputs")
    active = _behind(graph, name if projection is None else projection[1])
    mixed = _behind(graph, active.inputs[0]) if active is not None and active.op == "Relu" else None
    kernel = graph.constant(mixed.inputs[1]) if mixed is not None and mixed.op == "Conv" else None
    if mixed is None or kernel is None or kernel.ndim != 3:
        raise PublishedModelError("the decoder is not a convolution of the last symbols with ReLU")
    channels, group, context = kernel.shape
    bias = graph.constant(mixed.inputs[2]) if len(mixed.inputs) > 2 else None
    groups = int(mixed.attributes.get("group", 1))
    inputs, size = group * groups, channels // groups
    weight = np.zeros((context, inputs, channels), np.float32)
    for number in range(groups):
        columns, rows = slice(number * group, (number + 1) * group), slice(number * size, (number + 1) * size)
        weight[:, columns, rows] = kernel[rows].transpose(2, 1, 0)
    offset = np.zeros(channels, np.float32) if bias is None else bias
    layer = Linear("decoder context", weight.reshape(context * inputs, channels), offset)
    return context, _embedding(graph), (layer,), None if projection is None else projection[0]


def _linear(graph: OnnxGraph, name: str, title: str) -> tuple[Linear, str] | None:
    """Return the linear layer that gives a value, and the name of its input; None if it is no such layer."""
    node = _behind(graph, name)
    bias: Floats | None = None
    if node is not None and node.op == "Add":
        constants = [graph.constant(operand) for operand in node.inputs]
        if (constants[0] is None) == (constants[1] is None):
            return None
        bias = constants[0] if constants[0] is not None else constants[1]
        node = _behind(graph, node.inputs[0 if constants[0] is None else 1])
    if node is None or node.op not in {"MatMul", "Gemm"}:
        return None
    weight = graph.constant(node.inputs[1])
    if weight is None or weight.ndim != 2:
        return None
    if node.op == "Gemm":
        plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
        if any(node.attributes.get(key, value) != value for key, value in plain.items()):
            return None
        weight = weight.T if node.attributes.get("transB", 0) else weight
        bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else bias
    offset = np.zeros(weight.shape[1], np.float32) if bias is None else bias.reshape(-1)
    return Linear(title, np.ascontiguousarray(weight, np.float32), np.asarray(offset, np.float32)), node.inputs[0]


def _behind(graph: OnnxGraph, name: str) -> Node | None:
    """Return the operation that computed the numbers of a value."""
    return graph.producers.get(_moved(graph, name))


def _moved(graph: OnnxGraph, name: str) -> str:
    """Return the value whose numbers a value has in another shape."""
    node = graph.producers.get(name)
    while node is not None and node.op in MOVES:
        name = node.inputs[0]
        node = graph.producers.get(name)
    return name


def _check(weights: TransducerWeights) -> None:
    """Check that all sizes fit. Raises: PublishedModelError."""
    width = weights.embedding.shape[1] * max(1, weights.context)
    for linear in weights.prediction:
        wanted = weights.hidden if linear.name.endswith("state") else width
        if linear.weight.shape[0] != wanted or len(linear.bias) != linear.weight.shape[1]:
            raise PublishedModelError(f"{linear.name} has {linear.weight.shape[0]} inputs, not {wanted}")
        width = weights.hidden or linear.weight.shape[1]
    if weights.history is not None and weights.history.weight.shape[0] != width:
        raise PublishedModelError(f"{weights.history.name} has {weights.history.weight.shape[0]} inputs, not {width}")
    ends = [width if weights.history is None else weights.history.weight.shape[1]]
    ends += [] if weights.frames is None else [weights.frames.weight.shape[1]]
    if any(end != weights.joined for end in ends):
        raise PublishedModelError(f"the joiner has {weights.joined} inputs, not {ends[0]}")
    if any(size % LANES for linear in weights.linears for size in linear.weight.shape):
        raise PublishedModelError(f"sizes of decoder or joiner are not multiples of {LANES}")
