"""Nodes as PyTorch's exporter writes them: sizes asked for at run time, Linear as MatMul and Add, and activations.

Weights are random. Hidden values are (N, T, D) unless a function says otherwise.
"""

from __future__ import annotations

import numpy as np

END = np.iinfo(np.int64).max
BIAS_SCALE = 0.1
SWOOSHES = {"L": (4.0, 0.035), "R": (1.0, 0.313261687)}  # offset of the input, constant that makes 0 of 0 for R


def size(graph, x, axis):
    """Return the size of an axis as a scalar int64, computed at run time."""
    return graph("Gather", graph("Shape", x), np.int64(axis), axis=0)


def shape(graph, *sizes):
    """Return a shape (rank,) int64 of numbers and scalars that are computed at run time."""
    parts = [graph("Unsqueeze", each, [0]) if isinstance(each, str) else np.asarray([each], np.int64) for each in sizes]
    return graph("Concat", *parts, axis=0)


def part(graph, x, start, end, axis):
    """Slice an axis from `start` to `end`: numbers, or scalars that are computed at run time."""
    bounds = [graph("Unsqueeze", each, [0]) if isinstance(each, str) else [each] for each in (start, end)]
    return graph("Slice", x, *bounds, [axis])


def bias(graph, count, scale=BIAS_SCALE):
    return graph.weight(count, scale=scale)


def dense(graph, x, rows, columns, scale=None):
    """Apply a Linear with a bias: MatMul, then Add with the bias first."""
    return graph("Add", bias(graph, columns), graph.linear(x, rows, columns, scale=scale))


def pointwise(graph, x, channels, results, scale=None):
    """Apply a Conv1d of kernel size 1 with a bias to (N, channels, T)."""
    kernel = graph.weight(results, channels, 1, scale=channels**-0.5 if scale is None else scale)
    return graph("Conv", x, kernel, bias(graph, results), kernel_shape=[1], strides=[1], group=1)


def depthwise(graph, x, channels, taps, *, pads=(0, 0), scale=None):
    """Convolve each channel of (N, channels, T) with its own kernel, and add a bias."""
    kernel = graph.weight(channels, 1, taps, scale=taps**-0.5 if scale is None else scale)
    return graph(
        "Conv", x, kernel, bias(graph, channels), kernel_shape=[taps], strides=[1], group=channels, pads=list(pads)
    )


def layer_norm(graph, x, count):
    weight, offset = graph.weight(count, scale=0.1), graph.weight(count, scale=0.1)
    graph.initializers[weight] += 1
    return graph("LayerNormalization", x, weight, offset, axis=-1)


def silu(graph, x):
    return graph("Mul", x, graph("Sigmoid", x))


def gated(graph, x, axis):
    """Apply GLU: the first half of an axis times the sigmoid of the second half."""
    kept, gate = graph("Split", x, outputs=2, axis=axis)
    return graph("Mul", kept, graph("Sigmoid", gate))


def swoosh(graph, x, kind, form):
    """Return log(1 + exp(x - offset)) - 0.08 x - constant, written in one of the forms of icefall's exports."""
    offset, constant = SWOOSHES[kind]
    moved = graph("Sub", x, np.float32(offset))
    if form == "max":
        zero = graph.constant(np.float32(0))
        apart = graph("Neg", graph("Abs", graph("Sub", zero, moved)))
        grown = graph("Log", graph("Add", graph("Exp", apart), np.float32(1)))
        grown = graph("Add", graph("Max", zero, moved), grown)
    else:
        grown = graph("Log", graph("Add", graph("Exp", moved), np.float32(1)))
        grown = graph("Where", graph("Equal", grown, np.float32(np.inf)), moved, grown)
    return graph("Sub", graph("Sub", grown, graph("Mul", x, np.float32(0.08))), np.float32(constant))


def bias_norm(graph, x, count):
    """Divide by the root of the mean square of x minus a bias, times a learned scale."""
    centered = graph("Sub", x, graph.weight(count, scale=0.1))
    mean = graph("ReduceMean", graph("Pow", centered, np.float32(2)), axes=[-1], keepdims=1)
    scale = graph("Mul", graph("Pow", mean, np.float32(-0.5)), graph("Exp", np.float32(0.1)))
    return graph("Mul", x, scale)


def bypass(graph, before, after, count):
    """Return `before` plus a share of the change for each channel."""
    shares = graph.constant(graph.random.uniform(0.4, 0.9, count).astype(np.float32))
    return graph("Add", before, graph("Mul", graph("Sub", after, before), shares))


def with_width(graph, x, before, count):
    """Return the first `count` channels of x (T, N, `before`), followed by zeros if there are fewer."""
    if count <= before:
        return part(graph, x, 0, count, 2)
    missing = shape(graph, size(graph, x, 0), size(graph, x, 1), count - before)
    return graph("Concat", x, graph("Expand", np.zeros((1, 1, 1), np.float32), missing), axis=-1)


def downsample(graph, x, factor):
    """Return a weighted sum of each `factor` frames of (T, N, D)."""
    frames, rows, count = (size(graph, x, axis) for axis in range(3))
    slow = graph("Div", graph("Add", frames, np.int64(factor - 1)), np.int64(factor))
    x = graph("Reshape", x, shape(graph, slow, factor, rows, count))
    weights = graph("Softmax", graph.weight(factor, scale=0.3), axis=0)
    weights = graph("Unsqueeze", graph("Unsqueeze", weights, [-1]), [-1])
    return graph("ReduceSum", graph("Mul", x, weights), [1], keepdims=0)


def upsample(graph, x, factor):
    """Repeat each frame of (T, N, D)."""
    frames, rows, count = (size(graph, x, axis) for axis in range(3))
    x = graph("Expand", graph("Unsqueeze", x, [1]), shape(graph, frames, factor, rows, count))
    return graph("Reshape", x, shape(graph, graph("Mul", frames, np.int64(factor)), rows, count))
