"""Nodes as PyTorch's exporter writes them: sizes asked for at run time, Linear as MatMul and Add, and activations.

Weights are random. Hidden values are (N, T, D) unless a function says otherwise.
"""

from __future__ import annotations

import numpy as np

END = np.iinfo(np.int64).max
BIAS_SCALE = 0.1


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
