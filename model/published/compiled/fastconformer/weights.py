"""Weights of NeMo's cache-aware FastConformer, read from a published graph by the order of its operations.

Exporters keep the order in which the network computes, but neither all names nor all tensors: equal tensors are stored
once, and weights of products get names of their own. Source: NeMo's ConformerEncoder and ConvSubsampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.compiled.linears import Linear
from model.published.contracts import Contract
from model.published.graphs.metadata import Graph
from model.published.graphs.onnx_graph import Node, OnnxGraph

Floats = NDArray[np.float32]
Kind = Literal["product", "position", "depthwise", "image", "norm", "offset"]
TAPS = 3  # of the convolutions of the subsampling, in each direction; their stride is 2
LAYER_NORM_EPSILON = 1e-5
KINDS_OF_LAYER: tuple[Kind, ...] = (
    *("norm", "product", "product"),  # feed-forward
    *("norm", "product", "product", "product", "offset", "offset", "product"),  # attention
    *("norm", "product", "depthwise", "norm", "product"),  # convolution
    *("norm", "product", "product", "norm"),  # feed-forward, output
)
KINDS_OF_SUBSAMPLING: tuple[Kind, ...] = ("image", "image", "product", "image", "product", "product")


@dataclass(frozen=True, slots=True)
class Part:
    """An operation with weights: a product (K, O), a convolution (taps, C), a norm or an offset, and its bias."""

    kind: Kind
    weight: Floats
    bias: Floats


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, in the order of `KINDS_OF_LAYER`; without a norm in the convolution, that is None."""

    norms: tuple[Part, Part, Part, Part, Part]  # feed-forward, attention, convolution, feed-forward, output
    linears: tuple[Linear, ...]  # feed-forward 2, query, key, value, attention output, pointwise 2, feed-forward 2
    position: Linear
    content_offset: Floats  # (H, D / H), added to the query for the content
    position_offset: Floats  # and for the positions
    depthwise: Part  # (taps, D)
    convolution_norm: Part | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the network: `window` feature frames give `subsampled` frames, the last `frames` of which are new.

    `bins`: of a feature frame.
    """

    window: int
    bins: int
    subsampled: int
    frames: int
    channels: int
    hidden: int
    heads: int
    feedforward: int
    left: int
    taps: int
    outputs: int
    prompts: int  # languages that a stream may choose, and outputs of the first layer that reads the choice
    prompted: int
    scale: float  # of the frames after the subsampling


@dataclass(frozen=True, slots=True)
class FastConformerWeights:
    """Everything that a step reads. `outputs` is None for the encoder of a transducer."""

    sizes: Sizes
    images: tuple[Part, Part, Part]  # (9, C)
    subsampling: tuple[Linear, Linear, Linear]
    layers: tuple[Layer, ...]
    positions: Floats  # (2 P - 1, D): sines and cosines of relative positions P - 1 … 1 - P
    head: Linear | None
    prompt: tuple[Linear, ...] = ()  # two layers over a frame and a one for the language


def read_weights(graph: OnnxGraph, metadata: Graph, contract: Contract) -> FastConformerWeights:
    """Read the weights of a published graph. Raises: PublishedModelError with the reason if it is another network."""
    every = list(_parts(graph))
    parts, placed = ([part for part in every if (part.kind == "position") == wanted] for wanted in (False, True))
    layers, left, hidden = metadata.numbers("cache_last_channel_dim1")[0], *contract.states[0].shape[1:]
    taps = contract.states[1].shape[2] + 1
    reader = _Reader(parts)
    begin = reader.take("subsampling", KINDS_OF_SUBSAMPLING)
    images, products = ([part for part in begin if part.kind == kind] for kind in ("image", "product"))
    subsampling = [_linear(f"subsampling {number}", part) for number, part in enumerate(products)]
    if len(placed) != layers:
        raise PublishedModelError(f"{len(placed)} products project positions, not one in each of {layers} layers")
    read = tuple(_layer(f"layer {number}", reader, placed[number]) for number in range(layers))
    rest = reader.rest()
    prompt: tuple[Linear, ...] = ()
    if contract.prompts is not None:
        prompt, rest = tuple(_linear(f"languages {number}", part) for number, part in enumerate(rest)), []
        if len(prompt) != 2 or any(part.kind != "product" for part in reader.rest()):
            raise PublishedModelError(f"{len(prompt)} operations with weights follow the layers, not two for languages")
    if len(rest) > 1 or any(part.kind != "product" for part in rest):
        raise PublishedModelError(f"{len(rest)} operations with weights follow the layers")
    sizes = Sizes(
        window=contract.window,
        bins=contract.window_shape[1],
        subsampled=halved(contract.window, 3),
        frames=contract.shift // contract.subsampling,
        channels=images[0].weight.shape[1],
        hidden=hidden,
        heads=len(read[0].content_offset),
        feedforward=read[0].linears[0].weight.shape[1],
        left=left,
        taps=taps,
        outputs=rest[0].weight.shape[1] if rest else hidden,
        prompts=prompt[0].weight.shape[0] - hidden if prompt else 0,
        prompted=prompt[0].weight.shape[1] if prompt else 0,
        scale=_scale(graph, hidden),
    )
    weights = FastConformerWeights(
        sizes,
        (images[0], images[1], images[2]),
        (subsampling[0], subsampling[1], subsampling[2]),
        read,
        _positions(graph, sizes),
        _linear("outputs", rest[0]).widened() if rest else None,
        prompt,
    )
    _check(weights)
    if contract.prompts is not None and contract.prompts.count > sizes.prompts:
        raise PublishedModelError(f"it has room for {sizes.prompts} languages, not for {contract.prompts.count}")
    return weights


class _Reader:
    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts, self._at = parts, 0

    def take(self, name: str, kinds: Sequence[Kind]) -> list[Part]:
        """Return the next parts, which must be of these kinds. Raises: PublishedModelError."""
        parts = list(self._parts[self._at : self._at + len(kinds)])
        if [part.kind for part in parts] != list(kinds):
            names = ", ".join(part.kind for part in parts) or "no more operations"
            raise PublishedModelError(f"{name} is not that of a FastConformer: {names}")
        self._at += len(kinds)
        return parts

    def next_kind(self, ahead: int) -> Kind | None:
        """Return the kind of a part that is not taken yet."""
        at = self._at + ahead
        return self._parts[at].kind if at < len(self._parts) else None

    def rest(self) -> list[Part]:
        """Return the parts that were not taken."""
        return list(self._parts[self._at :])


def _layer(name: str, reader: _Reader, placed: Part) -> Layer:
    norm_at = KINDS_OF_LAYER.index("depthwise") + 1  # of the convolution's norm, which may be part of the convolution
    normed = reader.next_kind(norm_at) == "norm"
    kinds = KINDS_OF_LAYER if normed else (*KINDS_OF_LAYER[:norm_at], *KINDS_OF_LAYER[norm_at + 1 :])
    parts = reader.take(name, kinds)
    convolution_norm = parts.pop(norm_at) if normed else None
    norms = [part for part in parts if part.kind == "norm"]
    content, position = (part.weight for part in parts if part.kind == "offset")
    (depthwise,) = (part for part in parts if part.kind == "depthwise")
    linears = [_linear(f"{name} product {at}", part) for at, part in enumerate(parts) if part.kind == "product"]
    if content.ndim != 2 or content.shape != position.shape:
        raise PublishedModelError(f"{name}: the offsets of queries have shapes {content.shape} and {position.shape}")
    return Layer(
        (norms[0], norms[1], norms[2], norms[3], norms[4]),
        tuple(linears),
        _linear(f"{name} positions", placed),
        content,
        position,
        depthwise,
        convolution_norm,
    )


def _parts(graph: OnnxGraph) -> Iterator[Part]:
    """Yield the operations with weights, in the order of the graph.

    Some tools move those of constants, the products of positions, to an earlier place.
    """
    values = _values_of_audio(graph)
    for node in graph.nodes:
        weights = [graph.constant(name) if name else None for name in node.inputs]
        if node.op == "MatMul" and weights[1] is not None and weights[1].ndim == 2:
            kind: Kind = "product" if node.inputs[0] in values else "position"
            yield Part(kind, weights[1], _following_bias(graph, node, weights[1].shape[1]))
        elif node.op == "Conv" and weights[1] is not None:
            yield _convolution(node, weights[1], weights[2] if len(weights) > 2 else None)
        elif node.op in {"LayerNormalization", "Div"}:
            yield from _norm(graph, node)
        elif node.op in {"BatchNormalization", "InstanceNormalization", "GroupNormalization"}:
            raise PublishedModelError(f"{node.op} is not supported")
        elif node.op == "Add":
            other = weights[0] if weights[0] is not None else weights[1]
            if other is not None and other.ndim == 2 and other.dtype == np.float32 and len(other) > 1:
                yield Part("offset", other, np.zeros(0, np.float32))


def _values_of_audio(graph: OnnxGraph) -> set[str]:
    """Return the names of the values that depend on the features, and not only on their shape."""
    names = {graph.inputs[0].name}
    for node in graph.nodes:
        if node.op != "Shape" and names.intersection(node.inputs):
            names.update(node.outputs)
    return names


def _convolution(node: Node, weight: Floats, bias: Floats | None) -> Part:
    outputs = len(weight)
    offset = np.zeros(outputs, np.float32) if bias is None else bias
    if all(size == 1 for size in weight.shape[2:]):
        return Part("product", weight.reshape(outputs, -1).T, offset)
    taps = np.ascontiguousarray(weight.reshape(outputs, -1).T)  # (taps, C)
    if weight.shape[1] != 1 or any(size != 1 for size in node.attributes.get("dilations", ())):
        raise PublishedModelError(f"a convolution has weights of shape {weight.shape}")
    if weight.ndim == 3:
        return Part("depthwise", taps, offset)
    if weight.shape[2:] != (TAPS, TAPS) or list(node.attributes.get("strides", ())) != [2, 2]:
        raise PublishedModelError(f"a convolution of the subsampling has weights of shape {weight.shape}")
    return Part("image", taps, offset)


def _norm(graph: OnnxGraph, node: Node) -> Iterator[Part]:
    """Yield the layer norm of a node: one operation, or the division by the root of the variance + epsilon."""
    if node.op == "LayerNormalization":
        epsilon = node.attributes.get("epsilon", LAYER_NORM_EPSILON)
        weight, bias = (graph.constant(name) if name else None for name in (*node.inputs, "")[1:3])
    else:
        root = graph.producers.get(node.inputs[1])
        if root is None or root.op != "Sqrt" or root.inputs[0] not in graph.producers:
            return  # another division
        variance = graph.producers[root.inputs[0]]
        epsilon = next((constant for name in variance.inputs if (constant := graph.number(name)) is not None), 0.0)
        weight, scaled = _row_after(graph, node, "Mul")
        bias, _ = (None, None) if scaled is None else _row_after(graph, scaled, "Add")
    if weight is None:
        return  # no norm of a FastConformer
    if abs(epsilon - LAYER_NORM_EPSILON) > 1e-9:
        raise PublishedModelError(f"a norm has the epsilon {epsilon}")
    yield Part("norm", weight, np.zeros_like(weight) if bias is None else bias)


def _row_after(graph: OnnxGraph, node: Node, op: str) -> tuple[Floats | None, Node | None]:
    """Return the row of numbers that only this operation applies to a node's output, and the operation."""
    reader = graph.only_consumer(node.output)
    if reader is not None and reader.op == op:
        for name in reader.inputs:
            value = graph.constant(name)
            if value is not None and value.ndim == 1 and len(value) > 1:
                return np.asarray(value, np.float32), reader
    return None, None


def _following_bias(graph: OnnxGraph, node: Node, width: int) -> Floats:
    bias, _ = _row_after(graph, node, "Add")
    return bias if bias is not None and len(bias) == width else np.zeros(width, np.float32)


def _linear(name: str, part: Part) -> Linear:
    return Linear(name, np.asarray(part.weight, np.float32), np.asarray(part.bias, np.float32))


def _scale(graph: OnnxGraph, hidden: int) -> float:
    """Return the factor of the frames after the subsampling: the root of the width, or 1."""
    for node in graph.nodes:
        if node.op == "Mul":
            for name in node.inputs:
                value = graph.constant(name)
                if value is None or value.size != 1 or value.dtype.kind != "f":
                    continue
                if abs(float(value.reshape(())) - hidden**0.5) < 1e-3:
                    return float(np.float32(value.reshape(())))
    return 1.0


def _positions(graph: OnnxGraph, sizes: Sizes) -> Floats:
    """Return the table of relative positions."""
    needed = sizes.left + sizes.frames
    for value in graph.constants.values():
        if value.ndim == 3 and value.shape[2] == sizes.hidden and value.shape[1] % 2 and value.shape[1] > 2 * needed:
            return np.ascontiguousarray(value[0], np.float32)
    raise PublishedModelError("it has no table of relative positions")


def halved(size: int, times: int) -> int:
    """Return the size of an image's axis after convolutions of stride 2."""
    for _ in range(times):
        size = size // 2 + 1
    return size


def _check(weights: FastConformerWeights) -> None:
    """Check that all sizes fit. Raises: PublishedModelError."""
    sizes, hidden = weights.sizes, weights.sizes.hidden
    wide = 2 * hidden
    wanted = [
        *((hidden, sizes.feedforward), (sizes.feedforward, hidden)),
        *[(hidden, hidden)] * 4,
        *((hidden, wide), (hidden, hidden)),
        *((hidden, sizes.feedforward), (sizes.feedforward, hidden)),
    ]
    for layer in weights.layers:
        shapes = [linear.weight.shape for linear in layer.linears]
        if shapes != wanted or layer.depthwise.weight.shape != (sizes.taps, hidden):
            raise PublishedModelError(f"{layer.linears[0].name}: its weights have other sizes than expected")
        if layer.content_offset.size != hidden or (hidden // sizes.heads) % 16:
            raise PublishedModelError(f"{sizes.heads} heads of {hidden // sizes.heads} numbers are not supported")
    reduced = halved(sizes.bins, 3) * sizes.channels
    first, second, last = (linear.weight.shape for linear in weights.subsampling)
    if (first, second, last) != (*[(sizes.channels, sizes.channels)] * 2, (reduced, hidden)):
        raise PublishedModelError("the subsampling has other sizes than expected")
    if weights.prompt and weights.prompt[1].weight.shape != (sizes.prompted, hidden):
        raise PublishedModelError("the layers of the languages have other sizes than expected")
    if sizes.left % sizes.frames:
        raise PublishedModelError(f"{sizes.left} cached frames are no multiple of the {sizes.frames} of a step")
    if sizes.frames > sizes.subsampled:
        raise PublishedModelError(f"{sizes.window} feature frames give {sizes.subsampled} frames, not {sizes.frames}")
