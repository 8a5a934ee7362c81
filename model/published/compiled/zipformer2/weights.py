"""Weights of a streaming Zipformer 2, read from a published graph.

Exporters name weights by modules or not at all, and fold different parts. Values that depend on constants alone are
computed first; the weights then follow from the operations that use them, in the order of the graph, and from the
sizes in the metadata. Source: icefall's Zipformer2, Conv2dSubsampling and ChunkCausalDepthwiseConv1d.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from model.published.compiled.linears import Linear
from model.published.compiled.zipformer2.constants import Floats, GraphConstants, Norm, require
from model.published.contracts import Contract
from model.published.graphs.folding import fold_shapes
from model.published.graphs.metadata import Graph
from model.published.graphs.onnx_graph import Node, OnnxGraph

PRODUCTS = (
    "self_attn_weights.in_proj",
    *("feed_forward1.in_proj", "feed_forward1.out_proj"),
    *("nonlin_attention.in_proj", "nonlin_attention.out_proj"),
    *("self_attn1.in_proj", "self_attn1.out_proj"),
    *("conv_module1.in_proj", "conv_module1.out_proj"),
    *("feed_forward2.in_proj", "feed_forward2.out_proj"),
    *("self_attn2.in_proj", "self_attn2.out_proj"),
    *("conv_module2.in_proj", "conv_module2.out_proj"),
    *("feed_forward3.in_proj", "feed_forward3.out_proj"),
)
"""Products of a layer, in the order of its computation."""
SIZES = (
    *("encoder_dims", "num_encoder_layers", "left_context_len", "num_heads"),
    *("query_head_dims", "value_head_dims", "cnn_module_kernels"),
)
"""Keys of the metadata with a number for each stack."""
EMBED_SHAPES = ((8, 1, 3, 3), (32, 8, 3, 3), (128, 32, 3, 3), (128, 1, 7, 7), (384, 128, 1, 1), (128, 384, 1, 1))
EMBED_STRIDES = ((1, 1), (2, 2), (1, 2))
SWOOSH_SLOPE = 0.08
OPERATIONS = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Exp", "Log", "Abs", "Neg", "Max", "Min", "Sigmoid", "Tanh", "Softmax"),
        *("LogSoftmax", "Equal", "Where", "Cast", "LessOrEqual", "Not", "ReduceMean", "ReduceSum", "MatMul", "Conv"),
        *("Slice", "Concat", "Split", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Tile", "Identity"),
        *("Shape", "Gather", "GatherElements", "ConstantOfShape", "Range", "Flatten"),
    )
)
"""All that occur in exports of Zipformer 2; a graph with another one is refused."""


@dataclass(frozen=True, slots=True)
class Depthwise:
    """Causal convolution plus one within the chunk: (taps, D) and (D,) each; `edge` (T, D) scales the second one."""

    causal: Floats
    causal_bias: Floats
    chunk: Floats
    chunk_bias: Floats
    edge: Floats


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of a layer: products in the order of `PRODUCTS`, position scores (heads, P, left + 2 T - 1)."""

    products: tuple[Linear, ...]
    positions: Floats
    convolutions: tuple[Depthwise, Depthwise]
    middle: Floats  # bypass scales (D,)
    norm: Norm
    end: Floats


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers at one frame rate: `frames` per step, each for `factor` frames of 20 ms; `left` frames of context."""

    width: int
    factor: int
    frames: int
    left: int
    heads: int
    query: int
    value: int
    taps: int
    layers: tuple[Layer, ...]
    downsampling: Floats  # (factor,)
    combination: Floats | None  # bypass scales (D,) of the input; None for factor 1


@dataclass(frozen=True, slots=True)
class Embedding:
    """Three convolutions (O, I, 3, 3), the ConvNeXt layer's depthwise one (128, 1, 7, 7), then linear layers."""

    convolutions: tuple[tuple[Floats, Floats], ...]
    depthwise: tuple[Floats, Floats]
    wide: Linear
    narrow: Linear
    out: Linear
    norm: Norm


@dataclass(frozen=True, slots=True)
class Zipformer2Weights:
    """The whole network; `frames` of 20 ms per step, half as many results."""

    window: int
    bins: int
    frames: int
    embedding: Embedding
    stacks: tuple[Stack, ...]
    downsampling: Floats  # (2,)
    head: Linear
    log_probs: bool  # a log-softmax follows the head

    @property
    def linears(self) -> list[Linear]:
        """All linear layers: those of the embedding, those of each layer in order, the head."""
        embedding = self.embedding
        layers = [product for stack in self.stacks for layer in stack.layers for product in layer.products]
        return [embedding.wide, embedding.narrow, embedding.out, *layers, self.head]


def read_weights(source: OnnxGraph, graph: Graph, contract: Contract) -> Zipformer2Weights:
    """Read all weights of a published graph. Raises: PublishedModelError for a graph with any other structure."""
    folded = fold_shapes(source)
    unknown = {node.op for node in folded.nodes} - OPERATIONS
    require(not unknown, f"it has nodes {', '.join(sorted(unknown))}")
    constants = GraphConstants(folded)
    frames = contract.shift // 2
    embedding = _embedding(constants, contract.window_shape[1])
    stacks = tuple(_stacks(constants, graph, frames))
    downsampling = next(constants.downsamplings)
    require(downsampling.shape == (2,), "its output frames are not pairs of frames")
    head = constants.product("head", max(stack.width for stack in stacks), None)
    log_softmax = [node for node in folded.nodes if node.op == "LogSoftmax"]
    require(len(log_softmax) <= 1, "it has several outputs of log-probabilities")
    constants.check_empty()
    _check_counts(folded, sum(len(stack.layers) for stack in stacks))
    return Zipformer2Weights(
        *contract.window_shape, frames, embedding, stacks, downsampling, head, log_probs=bool(log_softmax)
    )


def reduced(bins: int) -> int:
    """Return the number of bins after a convolution of stride 2."""
    return (bins - 3) // 2 + 1


def _embedding(constants: GraphConstants, bins: int) -> Embedding:
    convolutions = []
    for shape, strides in zip(EMBED_SHAPES[:3], EMBED_STRIDES, strict=True):
        weight, bias, node = constants.convolution(shape, strides)
        pads = [int(pad) for pad in node.attributes.get("pads", [0] * 4)]
        require(pads == ([0, 1, 0, 1] if shape[1] == 1 else [0] * 4), f"a convolution {shape} pads by {pads}")
        convolutions.append((weight, bias))
    depthwise = constants.convolution(EMBED_SHAPES[3], (1, 1))
    wide, narrow = (constants.convolution(shape, (1, 1)) for shape in EMBED_SHAPES[4:])
    channels = EMBED_SHAPES[3][0]
    out = constants.product("encoder_embed.out", channels * reduced(reduced(bins)), None)
    return Embedding(
        tuple(convolutions),
        depthwise[:2],
        _pointwise("encoder_embed.convnext.pointwise_conv1", wide),
        _pointwise("encoder_embed.convnext.pointwise_conv2", narrow),
        out,
        _next_norm(constants, out.weight.shape[1]),
    )


def _pointwise(name: str, convolution: tuple[Floats, Floats, Node]) -> Linear:
    weight, bias, _ = convolution
    return Linear(name, np.ascontiguousarray(weight[:, :, 0, 0].T), bias)


def _next_norm(constants: GraphConstants, width: int) -> Norm:
    norm = next(constants.norms, None)
    require(norm is not None and len(norm.bias) == width, f"it has no norm of {width} channels")
    assert norm is not None
    return norm


def _stacks(constants: GraphConstants, graph: Graph, frames: int) -> Iterator[Stack]:
    rows = list(zip(*(graph.numbers(key) for key in SIZES), strict=True))
    longest = max(row[2] for row in rows)
    for number, (width, layers, left, heads, query, value, taps) in enumerate(rows):
        factor = longest // left
        require(left * factor == longest and frames % factor == 0, f"a left context of {left} frames is no fraction")
        require(left % (frames // factor) == 0, f"a left context of {left} frames is not a number of whole steps")
        sizes = (width, factor, frames // factor, left, heads, query, value, taps)
        weights = next(constants.downsamplings, np.zeros(0, np.float32)) if factor > 1 else np.ones(1, np.float32)
        require(len(weights) == factor, f"stack {number} has another downsampling than its left context")
        names = (f"encoders.{number}.layers.{layer}" for layer in range(layers))
        read = tuple(_layer(constants, name, sizes) for name in names)
        yield Stack(*sizes, read, weights, _next_bypass(constants, width) if factor > 1 else None)


def _layer(constants: GraphConstants, name: str, sizes: tuple[int, ...]) -> Layer:
    width, _, frames, left, heads, query, value, taps = sizes
    positions = next(constants.positions, np.zeros((0, 0, 0), np.float32))
    position_size = positions.shape[1]
    shape = heads, position_size, left + 2 * frames - 1
    require(positions.shape == shape, f"{name} has position scores of shape {positions.shape}, not {shape}")
    inner = 3 * width // 4
    outputs = {
        "self_attn_weights.in_proj": (width, heads * (2 * query + position_size)),
        "nonlin_attention.in_proj": (width, 3 * inner),
        "nonlin_attention.out_proj": (inner, width),
    }
    for number in (1, 2):
        outputs[f"self_attn{number}.in_proj"] = (width, heads * value)
        outputs[f"self_attn{number}.out_proj"] = (heads * value, width)
        outputs[f"conv_module{number}.in_proj"] = (width, 2 * width)
        outputs[f"conv_module{number}.out_proj"] = (width, width)
    products: list[Linear] = []
    for part in PRODUCTS:
        last = products[-1].weight.shape[1] if products else 0
        ends = (width, None) if part.endswith("in_proj") else (last, width)
        products.append(constants.product(f"{name}.{part}", *outputs.get(part, ends)))
    convolutions = _depthwise(constants, width, taps, frames), _depthwise(constants, width, taps, frames)
    middle = _next_bypass(constants, width)
    norm = _next_norm(constants, width)
    return Layer(tuple(products), positions, convolutions, middle, norm, _next_bypass(constants, width))


def _depthwise(constants: GraphConstants, width: int, taps: int, frames: int) -> Depthwise:
    causal, causal_bias, _ = constants.convolution((width, 1, taps // 2 + 1), (1,))
    chunk, chunk_bias, node = constants.convolution((width, 1, taps), (1,))
    edge = constants.edge(node)
    require(edge.shape == (frames, width), f"a scale of edges has the shape {edge.shape}")
    require(list(node.attributes.get("pads", [])) == [taps // 2] * 2, "a convolution within the chunk is not centered")
    return Depthwise(_by_tap(causal), causal_bias, _by_tap(chunk), chunk_bias, edge)


def _by_tap(weight: Floats) -> Floats:
    """(D, 1, taps) → (taps, D)."""
    return np.ascontiguousarray(weight[:, 0].T)


def _next_bypass(constants: GraphConstants, width: int) -> Floats:
    scale = next(constants.bypasses, np.zeros(0, np.float32))
    require(len(scale) == width, f"a bypass has {len(scale)} channels, not {width}")
    return scale


def _check_counts(graph: OnnxGraph, layers: int) -> None:
    """Raise: PublishedModelError if an operation does not occur as often as the layers need it."""
    counts = Counter(node.op for node in graph.nodes)
    expected = {"Softmax": layers, "Tanh": layers, "Sigmoid": 2 * layers}
    for name, count in expected.items():
        require(counts[name] == count, f"it has {counts[name]} nodes {name} instead of {count}")
    slopes = [
        node
        for node in graph.nodes
        if node.op == "Mul" and any(abs((graph.number(node) or 0) - SWOOSH_SLOPE) < 1e-6 for node in node.inputs)
    ]
    count = 4 + 5 * layers
    require(len(slopes) == count, f"it has {len(slopes)} activations Swoosh instead of {count}")
