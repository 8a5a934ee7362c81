"""T-one with random weights: frames of 30 ms of raw samples, and one flat float16 state of three parts.

The state is [clock (2) | history of hidden frames | a leaking mix of all chunks], whatever its published length is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import FLOAT, FLOAT16

WINDOW, FRAMES = 2400, 10  # samples and output frames of 0.3 s at 8 kHz
PERIOD = 37.0  # frames
HARMONICS = 3  # of the clock
LEAK = 0.7  # share of the mix that remains after a chunk


@dataclass(frozen=True, slots=True)
class TOne:
    """Sizes; a `state_dim` of less than 2 + history · hidden + 1 is too small."""

    state_dim: int = 399
    hidden: int = 16
    history: int = 20
    heads: int = 2

    @property
    def window(self):
        return WINDOW

    @property
    def shift(self):
        return WINDOW

    def metadata(self):
        values = {"model_type": "t-one", "language": "Russian", "version": "1", "comment": "probe"}
        return values | {"sample_rate": 8000, "frame_length_ms": 300, "state_dim": self.state_dim}


SIZES = {"small": {}}


def write_ctc(graph, spec, vocabulary):
    """The graph of a t-one-ctc file: its metadata."""
    signal = graph.input("signal", ["N", WINDOW, 1], "int32")
    state = graph("Cast", graph.input("state", ["N", spec.state_dim], "float16"), to=FLOAT)
    kept = spec.history * spec.hidden
    clock, next_clock = turned_clock(graph, graph.slice(state, 0, 2, 1))
    history = graph("Reshape", graph.slice(state, 2, 2 + kept, 1), [0, spec.history, spec.hidden])
    rest = graph.slice(state, 2 + kept, spec.state_dim, 1)
    x = spectrum(graph, signal, spec.hidden)
    hidden, next_history = attended(graph, x, history, spec)
    mixed, next_rest = leaking_mix(graph, x, rest, spec)
    hidden = graph.total(hidden, mixed, clock_values(graph, *clock, spec.hidden))
    graph.output(ctc_head(graph, hidden, spec.hidden, vocabulary), "logprobs", ["N", FRAMES, vocabulary])
    after = graph("Concat", next_clock, graph("Reshape", next_history, [0, kept]), next_rest, axis=1)
    graph.output(graph("Cast", after, to=FLOAT16), "state_next", ["N", spec.state_dim], "float16")
    graph.states.append(("state", "state_next"))
    return spec.metadata()


def turned_clock(graph, clock):
    """Return cosine and sine (N, frames) after the state's (N, 2), zero at the start; and the next state."""
    cosine, sine = graph("Split", clock, axis=1, outputs=2)
    square = graph("Add", graph("Mul", cosine, cosine), graph("Mul", sine, sine))
    started = graph("Cast", graph("Greater", square, np.float32(0.25)), to=FLOAT)
    length = graph("Sqrt", graph("Max", square, np.float32(0.25)))  # float16 would drift from 1
    cosine = graph("Add", graph("Div", cosine, length), graph("Sub", np.float32(1), started))
    sine = graph("Div", sine, length)
    angles = 2 * np.pi / PERIOD * np.arange(1, FRAMES + 1)[None]
    real = graph("Sub", graph("Mul", cosine, np.cos(angles)), graph("Mul", sine, np.sin(angles)))
    imaginary = graph("Add", graph("Mul", cosine, np.sin(angles)), graph("Mul", sine, np.cos(angles)))
    after = graph("Concat", graph.last(real, 1, 1), graph.last(imaginary, 1, 1), axis=1)
    return (real, imaginary), after


def spectrum(graph, signal, size):
    """Samples (N, 2400, 1) int32 → log-energies of random filters, mixed: (N, 10, size)."""
    samples = graph("Mul", graph("Cast", signal, to=FLOAT), np.float32(1 / 32768))
    frames = graph("Reshape", samples, [0, FRAMES, WINDOW // FRAMES])
    filtered = graph("MatMul", frames, graph.weight(WINDOW // FRAMES, size, scale=1.0))
    energy = graph("Log", graph("Add", graph("Mul", filtered, filtered), np.float32(1e-3)))
    return graph("Tanh", graph.linear(energy, size, size))


def attended(graph, x, history, spec):
    """Return the frames after attention to the history (N, history, D) and themselves, and the next history."""
    size, heads = spec.hidden, spec.heads
    joined = graph("Concat", history, x, axis=1)
    query, key, value = (
        split_heads(graph, graph.linear(source, size, size, scale=1.5 * size**-0.5), heads, size // heads)
        for source in (x, joined, joined)
    )
    weights = attention_weights(graph, query, key, steps=FRAMES, places=spec.history + FRAMES)
    seen = graph.linear(join_heads(graph, graph("MatMul", weights, value), size), size, size, scale=2 * size**-0.5)
    hidden = norm(graph, graph("Add", x, seen), size)
    hidden = norm(graph, graph("Add", hidden, feed_forward(graph, hidden, size, 2 * size)), size)
    return hidden, graph.last(joined, spec.history, 1)


def leaking_mix(graph, x, rest, spec):
    """Return the contribution of the mix (N, rest) to every frame (N, 1, D), and the mix after this chunk."""
    size = spec.hidden
    length = spec.state_dim - 2 - spec.history * size
    groups = -(-length // size)
    old = graph("Mul", rest, graph.weight(length, scale=2.0))
    padded = graph("Reshape", graph("Pad", old, [0, 0, 0, groups * size - length]), [0, groups, size])
    added = graph("Mul", graph("ReduceSum", padded, [1], keepdims=1), np.float32(groups**-0.5))
    summary = graph("Expand", graph("ReduceMean", x, axes=[1], keepdims=1), [1, groups, size])
    spread = graph.slice(graph("Reshape", summary, [0, groups * size]), 0, length, 1)
    fresh = graph("Mul", spread, graph.weight(length, scale=1 - LEAK))
    return graph("Tanh", added), graph("Add", graph("Mul", rest, np.float32(LEAK)), fresh)


def norm(graph, x, size):
    return graph("LayerNormalization", x, np.ones(size, np.float32), axis=-1)


def feed_forward(graph, x, size, inner):
    """Apply a layer of `inner` SiLU units to (N, T, D) float32."""
    middle = graph.linear(x, size, inner)
    return graph.linear(graph("Mul", middle, graph("Sigmoid", middle)), inner, size)


def attention_weights(graph, query, key, *, steps, places):
    """Softmax over places (N, heads, steps, places) of query (N, heads, steps, d) and key (N, heads, places, d).

    A random bias per step and position replaces the position encoding.
    """
    scores = graph("MatMul", query, graph("Transpose", key, perm=[0, 1, 3, 2]))
    position = graph.weight(steps, places, scale=1.0)
    return graph("Softmax", graph("Add", scores, position), axis=-1)


def split_heads(graph, x, heads, size):
    """(N, T, heads · size) → (N, heads, T, size)."""
    return graph("Transpose", graph("Reshape", x, [0, -1, heads, size]), perm=[0, 2, 1, 3])


def join_heads(graph, x, size):
    """(N, heads, T, size / heads) → (N, T, size)."""
    return graph("Reshape", graph("Transpose", x, perm=[0, 2, 1, 3]), [0, -1, size])


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


def ctc_head(graph, hidden, size, vocabulary):
    """Return log-probabilities (N, T, V); the constant "bias" is set by the calibration."""
    logits = graph("Mul", graph.linear(norm(graph, hidden, size), size, vocabulary), np.float32(3))
    biased = graph("Add", logits, graph.constant(np.zeros(vocabulary, np.float32), "bias"))
    return graph("LogSoftmax", biased, axis=-1)
