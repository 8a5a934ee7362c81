"""Parts shared by the encoders of several kinds: norm, feed-forward, attention, causal convolution, clock, head.

Hidden values are (N, T, D). No part reduces over the batch axis.
"""

from __future__ import annotations

import numpy as np

from .graph import FLOAT

MASKED = -1e4  # a score that is 0 after the softmax
HARMONICS = 3


def norm(graph, x, size):
    return graph("LayerNormalization", x, np.ones(size, np.float32), axis=-1)


def mel_weight(graph, bins, size):
    """Return a projection of mel bins that depends more on the shape of the spectrum than on its level."""
    name = graph.weight(bins, size, scale=2 * bins**-0.5)
    graph.initializers[name] -= 0.85 * graph.initializers[name].mean(0)
    return name


def feed_forward(graph, x, size, inner):
    """Apply a layer of `inner` SiLU units to (N, T, D) float32."""
    middle = graph.linear(x, size, inner)
    return graph.linear(graph("Mul", middle, graph("Sigmoid", middle)), inner, size)


def attention_weights(graph, query, key, bias, *, steps, places):
    """Softmax over places (N, heads, steps, places) of query (N, heads, steps, d) and key (N, heads, places, d).

    A random bias per step and position replaces the position encoding; `bias` is the mask, added to the scores.
    """
    scores = graph("MatMul", query, graph("Transpose", key, perm=[0, 1, 3, 2]))
    position = graph.weight(steps, places, scale=1.0)
    return graph("Softmax", graph.total(scores, position, bias), axis=-1)


def split_heads(graph, x, heads, size):
    """(N, T, heads · size) → (N, heads, T, size)."""
    return graph("Transpose", graph("Reshape", x, [0, -1, heads, size]), perm=[0, 2, 1, 3])


def join_heads(graph, x, size):
    """(N, heads, T, size / heads) → (N, T, size)."""
    return graph("Reshape", graph("Transpose", x, perm=[0, 2, 1, 3]), [0, -1, size])


def causal_convolution(graph, x, cache, channels, kept):
    """Convolve each channel of x (N, T, D) after the cache (N, D, kept); return (N, T, D) and the next cache."""
    joined = graph("Concat", cache, graph("Transpose", x, perm=[0, 2, 1]), axis=2)  # (N, D, kept + T)
    kernel = graph.weight(channels, 1, kept + 1, scale=1.5 * (kept + 1) ** -0.5)
    result = graph("Conv", joined, kernel, group=channels, kernel_shape=[kept + 1])
    return graph("Transpose", result, perm=[0, 2, 1]), graph.last(joined, kept, 2)


def age_mask(graph, seen, ages, places_after):
    """Return a mask to add to scores, (N, 1, 1, places): hides positions before the last `seen` (N,) int64 frames."""
    enough = graph("LessOrEqual", np.asarray(ages, np.int64)[None], graph("Unsqueeze", seen, [1]))
    hidden = graph("Where", enough, np.float32(0), np.float32(MASKED))  # (N, left)
    shown = graph("Mul", graph("Cast", graph("Unsqueeze", seen, [1]), to=FLOAT), np.zeros((1, places_after)))
    return graph("Unsqueeze", graph("Concat", hidden, shown, axis=1), [1, 2])


def clock_of_count(graph, count, steps, per_step, period):
    """Return cosine and sine (N, steps) of a time: count (N,) float32 plus per_step per step, in periods."""
    angle = 2 * np.pi / period
    times = graph("Add", graph("Unsqueeze", count, [1]), np.arange(steps, dtype=np.float32)[None] * per_step)
    phase = graph("Mul", times, np.float32(angle))
    return graph("Cos", phase), graph("Sin", phase)


def clock_values(graph, cosine, sine, size, strength=0.4):
    """Return a random projection of the clock's harmonics, (N, T, size), so that the output varies in silence too."""
    values, turned = [cosine, sine], (cosine, sine)
    for _ in range(HARMONICS - 1):
        real = graph("Sub", graph("Mul", turned[0], cosine), graph("Mul", turned[1], sine))
        imaginary = graph("Add", graph("Mul", turned[0], sine), graph("Mul", turned[1], cosine))
        turned = real, imaginary
        values += turned
    stacked = graph("Concat", *[graph("Unsqueeze", value, [2]) for value in values], axis=2)
    return graph("MatMul", stacked, graph.weight(2 * HARMONICS, size, scale=strength * HARMONICS**-0.5))


def with_clock(graph, x, clock):
    """Return the frames with the clock in their first two columns."""
    columns = [graph("Unsqueeze", value, [2]) for value in clock]
    return graph("Concat", *columns, graph.slice(x, 2, np.iinfo(np.int64).max, 2), axis=2)


def ctc_head(graph, hidden, size, vocabulary):
    """Return log-probabilities (N, T, V); the constant "bias" is set by the calibration."""
    logits = graph("Mul", graph.linear(norm(graph, hidden, size), size, vocabulary), np.float32(3))
    biased = graph("Add", logits, graph.constant(np.zeros(vocabulary, np.float32), "bias"))
    return graph("LogSoftmax", biased, axis=-1)
