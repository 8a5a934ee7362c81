"""NeMo's cache-aware FastConformer with random weights: the encoder of both kinds, and the CTC file.

Each layer has a cache of hidden frames, of which attention uses `cache_last_channel_len`, and one of its
convolution. Two columns of the first layer's frames hold a clock. Output frames are 80 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .layers import (
    age_mask,
    attention_weights,
    causal_convolution,
    clock_values,
    ctc_head,
    feed_forward,
    join_heads,
    mel_weight,
    norm,
    split_heads,
    with_clock,
)

MELS = 80
SUBSAMPLING = 8
MEAN, DEVIATION = -10.0, 4.0  # of the features of speech
PERIOD = 13.0  # output frames


@dataclass(frozen=True, slots=True)
class NeMo:
    """The sizes in the metadata, and heads and feed-forward units beyond them."""

    window: int = 25
    shift: int = 16
    layers: int = 2
    left: int = 12
    hidden: int = 16
    kept: int = 4  # frames of a convolution's cache
    heads: int = 2
    feedforward: int = 24
    pred_rnn_layers: int = 1  # these two only for the transducer
    pred_hidden: int = 16

    @property
    def frames(self):
        return self.shift // SUBSAMPLING

    def metadata(self, vocabulary):
        """Return the metadata without that of the transducer; `vocabulary` counts the blank, NeMo's does not."""
        values = {"vocab_size": vocabulary - 1, "window_size": self.window, "chunk_shift": self.shift}
        channel = (self.layers, self.left, self.hidden)
        time = (self.layers, self.hidden, self.kept)
        for name, sizes in (("cache_last_channel", channel), ("cache_last_time", time)):
            values |= {f"{name}_dim{place}": size for place, size in enumerate(sizes, 1)}
        values |= {"normalize_type": "", "subsampling_factor": SUBSAMPLING, "version": "1", "model_author": "NeMo"}
        return values | {"model_type": "EncDecHybridRNNTCTCBPEModel", "comment": "probe"}


MEDIUM = {"layers": 17, "left": 70, "hidden": 64, "kept": 8, "heads": 4, "feedforward": 128, "pred_hidden": 64}
SIZES = {"small": {}, "medium": MEDIUM}


def write_ctc(graph, spec, vocabulary):
    """The graph of a nemo-ctc file: its metadata."""
    hidden, _, give_states = write_encoder(graph, spec)
    head = ctc_head(graph, hidden, spec.hidden, vocabulary)
    graph.output(head, "logprobs", ["N", spec.frames, vocabulary])
    give_states()
    return spec.metadata(vocabulary)


def write_encoder(graph, spec):
    """Return the hidden frames (N, T', D), their clock, and a function that declares the outputs after the first."""
    signal = graph.input("audio_signal", ["N", MELS, spec.window])
    graph.input("length", ["N"], "int64")
    channel_shape = ["N", spec.layers, spec.left, spec.hidden]
    time_shape = ["N", spec.layers, spec.hidden, spec.kept]
    channels = graph.input("cache_last_channel", channel_shape)
    times = graph.input("cache_last_time", time_shape)
    seen = graph.input("cache_last_channel_len", ["N"], "int64")
    x = pre_encode(graph, signal, spec)
    clock = turned_clock(graph, channels, seen, spec.frames)
    mask = age_mask(graph, seen, np.arange(spec.left, 0, -1), spec.frames)
    next_channels, next_times = [], []
    for index in range(spec.layers):
        own = graph("Squeeze", graph.slice(channels, index, index + 1, 1), [1])  # (N, left, D)
        entered = with_clock(graph, x, clock) if index == 0 else x
        joined = graph("Concat", own, entered, axis=1)
        next_channels.append(graph("Unsqueeze", graph.last(joined, spec.left, 1), [1]))
        cache = graph("Squeeze", graph.slice(times, index, index + 1, 1), [1])  # (N, D, kept)
        x, cache = layer(graph, spec, joined, cache, mask)
        next_times.append(graph("Unsqueeze", cache, [1]))
    hidden = graph("Add", x, clock_values(graph, *clock, spec.hidden))

    def give_states():
        frames = graph("Div", graph("Sub", "length", np.int64(spec.window - spec.shift)), np.int64(SUBSAMPLING))
        graph.output(frames, "encoded_lengths", ["N"], "int64")
        graph.output(graph("Concat", *next_channels, axis=1), "cache_last_channel_next", channel_shape)
        graph.output(graph("Concat", *next_times, axis=1), "cache_last_time_next", time_shape)
        counted = graph("Min", graph("Add", seen, np.int64(spec.frames)), np.int64(spec.left))
        graph.output(counted, "cache_last_channel_next_len", ["N"], "int64")
        graph.states += [("cache_last_channel", "cache_last_channel_next"), ("cache_last_time", "cache_last_time_next")]
        graph.states.append(("cache_last_channel_len", "cache_last_channel_next_len"))

    return hidden, clock, give_states


def pre_encode(graph, signal, spec):
    """Mel bins (N, 80, window), those after `length` hidden → frames of 80 ms (N, T', D)."""
    inside = graph("Less", np.arange(spec.window)[None], graph("Unsqueeze", "length", [1]))
    scaled = graph("Div", graph("Sub", signal, np.float32(MEAN)), np.float32(DEVIATION))
    scaled = graph("Where", graph("Unsqueeze", inside, [1]), scaled, np.float32(0))
    mixed = graph("MatMul", graph("Transpose", scaled, perm=[0, 2, 1]), mel_weight(graph, MELS, spec.hidden))
    taps = spec.window - spec.shift + SUBSAMPLING  # uses all frames of the window
    kernel = graph.weight(spec.hidden, 1, taps, scale=taps**-0.5)
    mixed = graph("Transpose", mixed, perm=[0, 2, 1])
    frames = graph("Conv", mixed, kernel, group=spec.hidden, kernel_shape=[taps], strides=[SUBSAMPLING])
    return graph("Tanh", graph("Transpose", frames, perm=[0, 2, 1]))


def turned_clock(graph, channels, seen, frames):
    """Return cosine and sine (N, frames) that continue those of the newest cached frame; (1, 0) at the start."""
    newest = graph("Squeeze", graph.slice(graph.last(channels, 1, 2), 0, 1, 1), [1, 2])  # (N, D)
    cosine, sine = graph.slice(newest, 0, 1, 1), graph.slice(newest, 1, 2, 1)
    square = graph("Add", graph("Mul", cosine, cosine), graph("Mul", sine, sine))
    length = graph("Sqrt", graph("Max", square, np.float32(1e-3)))
    start = graph("Cast", graph("Equal", graph("Unsqueeze", seen, [1]), np.int64(0)), to=1)
    cosine = graph("Add", graph("Div", cosine, length), start)
    sine = graph("Div", sine, length)
    angles = 2 * np.pi / PERIOD * np.arange(1, frames + 1)[None]
    real = graph("Sub", graph("Mul", cosine, np.cos(angles)), graph("Mul", sine, np.sin(angles)))
    return real, graph("Add", graph("Mul", cosine, np.sin(angles)), graph("Mul", sine, np.cos(angles)))


def layer(graph, spec, joined, cache, mask):
    """From the cached frames and x (N, left + T', D): the result (N, T', D), the next cache (N, D, kept)."""
    x = graph.last(joined, spec.frames, 1)
    size, heads = spec.hidden, spec.heads
    query, key, value = (
        split_heads(graph, graph.linear(source, size, size, scale=1.5 * size**-0.5), heads, size // heads)
        for source in (x, joined, joined)
    )
    weights = attention_weights(graph, query, key, mask, steps=spec.frames, places=spec.left + spec.frames)
    seen = join_heads(graph, graph("MatMul", weights, value), size)
    x = norm(graph, graph("Add", x, graph.linear(seen, size, size, scale=2 * size**-0.5)), size)
    mixed, cache = causal_convolution(graph, graph.linear(x, size, size), cache, size, spec.kept)
    x = graph.total(x, graph("Tanh", mixed), feed_forward(graph, x, size, spec.feedforward))
    return norm(graph, x, size), cache
