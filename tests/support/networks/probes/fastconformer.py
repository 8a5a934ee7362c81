"""NeMo's cache-aware FastConformer as its exporter writes it, with random weights: a nemo-ctc file.

Nodes and their order are those of a released export, so that its speed and its bits say something about released
models. Keys and values of all cached frames are projected at every step, and the table of
relative positions in every layer. Released exports that are older than the masks between the convolutions of the
subsampling have none, and neither has this one.

Source: NeMo's ConformerEncoder, ConvSubsampling, ConformerLayer and RelPositionMultiHeadAttention.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from .exporting import END, bias, dense, depthwise, gated, layer_norm, part, pointwise, shape, silu, size
from .graph import FLOAT

SUBSAMPLING = 8
MASKED = np.float32(-10_000)
HALF = np.float32(0.5)
LANGUAGES = {"en-US": 0, "en-GB": 1, "de-DE": 2, "ja-JP": 4, "pt-BR": 5, "pt-PT": 6, "auto": 9}  # of prompts


@dataclass(frozen=True, slots=True)
class FastConformer:
    """The sizes in the metadata, and those of the weights."""

    bins: int = 80  # mel bins of a feature frame
    window: int = 25
    shift: int = 16
    layers: int = 2
    left: int = 14
    hidden: int = 16
    kept: int = 4  # frames of a convolution's cache
    heads: int = 2
    feedforward: int = 64
    channels: int = 16  # of the subsampling's convolutions
    positions: int = 100  # most frames that the table of relative positions is for
    prompts: int = 0  # languages that the graph has room for; 0: it takes none
    dropped: int = 2  # first frames of the subsampling, which overlap the previous chunk
    mean: float = -10.0  # of the features of speech
    deviation: float = 4.0
    pred_rnn_layers: int = 1  # these two only for the transducer
    pred_hidden: int = 16
    exported: bool = False  # decoder and joiner as NeMo exports them; else signs in the weights end bursts of symbols

    @property
    def frames(self):
        return self.shift // SUBSAMPLING

    @property
    def reduced(self):
        """Mel bins after three convolutions of stride 2."""
        size = self.bins
        for _ in range(3):
            size = size // 2 + 1 if self.dropped else (size + 1) // 2
        return size

    def metadata(self, vocabulary):
        """Return the metadata without that of the transducer; `vocabulary` counts the blank, NeMo's does not."""
        values = {"vocab_size": vocabulary - 1, "window_size": self.window, "chunk_shift": self.shift}
        channel = (self.layers, self.left, self.hidden)
        time = (self.layers, self.hidden, self.kept)
        for name, sizes in (("cache_last_channel", channel), ("cache_last_time", time)):
            values |= {f"{name}_dim{place}": size for place, size in enumerate(sizes, 1)}
        values |= {"normalize_type": "", "subsampling_factor": SUBSAMPLING, "version": "1", "model_author": "NeMo"}
        values |= {"model_type": "EncDecHybridRNNTCTCBPEModel", "comment": "probe"}
        if self.prompts:
            values |= {"prompt_dictionary": json.dumps(LANGUAGES), "auto_prompt_id": LANGUAGES["auto"]}
        return values | ({} if self.bins == 80 else {"feat_dim": self.bins})  # older exports do not state it


def published(hidden, layers, heads):
    sizes = {"left": 70, "kept": 8, "positions": 5_000, "channels": 256, "feedforward": 4 * hidden}
    return sizes | {"hidden": hidden, "layers": layers, "heads": heads}


SIZES = {"small": {}, "26m": published(256, 16, 4), "109m": published(512, 17, 8)}


def write_ctc(graph, spec, vocabulary):
    """The graph of a nemo-ctc file: its metadata."""
    x, give_states = write_encoder(graph, spec)
    head = graph.weight(vocabulary, spec.hidden, 1, scale=3 * spec.hidden**-0.5)
    scores = graph("Conv", x, head, graph.constant(np.zeros(vocabulary, np.float32), "bias"), kernel_shape=[1])
    log_probs = graph("LogSoftmax", graph("Transpose", scores, perm=[0, 2, 1]), axis=-1)
    graph.output(log_probs, "logprobs", ["N", spec.frames, vocabulary])
    give_states()
    return spec.metadata(vocabulary)


def write_frames(graph, spec):
    """The graph of an encoder of a nemo-transducer."""
    x, give_states = write_encoder(graph, spec)
    if spec.prompts:
        x = for_language(graph, spec, x)
    graph.output(x, "outputs", ["N", spec.hidden, spec.frames])
    give_states()


def for_language(graph, spec, x):
    """Project frames (N, D, T') with a one for the language of each stream joined to them."""
    chosen = graph("OneHot", graph.input("prompt_index", ["N"], "int64"), np.int64(spec.prompts), np.float32([0, 1]))
    x = graph("Transpose", x, perm=[0, 2, 1])  # (N, T', D)
    rows = shape(graph, size(graph, x, 0), size(graph, x, 1), spec.prompts)
    joined = graph("Concat", x, graph("Expand", graph("Unsqueeze", chosen, [1]), rows), axis=-1)
    hidden, wide = spec.hidden, spec.hidden + spec.prompts
    inner = graph("Relu", dense(graph, joined, wide, 2 * hidden, scale=2 * wide**-0.5))
    return graph("Transpose", dense(graph, inner, 2 * hidden, hidden, scale=(2 * hidden) ** -0.5), perm=[0, 2, 1])


def write_encoder(graph, spec):
    """Return frames (N, D, T'), and a function that declares the lengths and the states after the output of frames."""
    signal = graph.input("audio_signal", ["N", spec.bins, "T"])
    length = graph.input("length", ["N"], "int64")
    channel_shape = ["N", spec.layers, spec.left, spec.hidden]
    time_shape = ["N", spec.layers, spec.hidden, spec.kept]
    channels = graph("Transpose", graph.input("cache_last_channel", channel_shape), perm=[1, 0, 2, 3])
    times = graph("Transpose", graph.input("cache_last_time", time_shape), perm=[1, 0, 2, 3])
    seen = graph.input("cache_last_channel_len", ["N"], "int64")
    x, lengths = subsampling(graph, graph("Transpose", signal, perm=[0, 2, 1]), length, spec)
    frames = size(graph, x, 1)
    total = graph("Add", frames, np.int64(spec.left))
    x = graph("Mul", x, np.float32(spec.hidden**0.5))
    positions = position_table(graph, total, spec)
    padding, hidden_places = masks(graph, total, lengths, seen, spec)
    next_channels, next_times = [], []
    for index in range(spec.layers):
        cached = (graph("Gather", states, np.int64(index), axis=0) for states in (channels, times))
        x, *following = layer(graph, spec, x, cached, (positions, padding, hidden_places))
        for values, value in zip((next_channels, next_times), following, strict=True):
            values.append(graph("Unsqueeze", value, [0]))
    x = part(graph, graph("Transpose", x, perm=[0, 2, 1]), 0, spec.frames, 2)  # (N, D, T')

    def give_states():
        graph.output(graph("Min", lengths, np.int64(spec.frames)), "encoded_lengths", ["N"], "int64")
        stacked = part(graph, graph("Concat", *next_channels, axis=0), -spec.left, END, 2)
        graph.output(graph("Transpose", stacked, perm=[1, 0, 2, 3]), "cache_last_channel_next", channel_shape)
        stacked = graph("Concat", *next_times, axis=0)
        graph.output(graph("Transpose", stacked, perm=[1, 0, 2, 3]), "cache_last_time_next", time_shape)
        counted = graph("Min", graph("Add", seen, frames), np.int64(spec.left))
        graph.output(counted, "cache_last_channel_next_len", ["N"], "int64")
        for name in ("cache_last_channel", "cache_last_time"):
            graph.states.append((name, f"{name}_next"))
        graph.states.append(("cache_last_channel_len", "cache_last_channel_next_len"))

    return x, give_states


def subsampling(graph, x, length, spec):
    """Mel frames (N, T, F) and their count → frames of 80 ms (N, T', D) and their count, both (N,) int64.

    The first `spec.dropped` frames are left out; kernels are centered on a frame if there are none.
    """
    channels, lengths = spec.channels, graph("Cast", length, to=FLOAT)
    kernel = graph.weight(channels, 1, 3, 3, scale=1 / 3 / spec.deviation)
    # released weights have learned the features' mean, random ones are given it
    offsets = graph.constant(graph.initializers[kernel].sum((1, 2, 3)) * -spec.mean)
    before = 2 if spec.dropped else 1
    x = halved(graph, graph("Unsqueeze", x, [1]), (kernel, offsets, 1), before)
    x = graph("Relu", x)
    for _ in range(2):
        kernel = graph.weight(channels, 1, 3, 3, scale=1 / 3)
        x = halved(graph, x, (kernel, bias(graph, channels), channels), before)
        kernel = graph.weight(channels, channels, 1, 1, scale=(2 / channels) ** 0.5)
        x = graph("Relu", graph("Conv", x, kernel, bias(graph, channels), kernel_shape=[1, 1]))
    x = graph("Transpose", x, perm=[0, 2, 1, 3])  # (N, T', C, F')
    x = graph("Reshape", x, shape(graph, size(graph, x, 0), size(graph, x, 1), -1))
    inner = channels * spec.reduced
    x = dense(graph, x, inner, spec.hidden, scale=(inner * spec.hidden) ** -0.5)  # of unit size after the scaling
    for _ in range(3):
        lengths = graph("Div", graph("Add", lengths, np.float32(before - 2)), np.float32(2))
        lengths = graph("Floor", graph("Add", lengths, np.float32(1)))
    lengths = graph("Cast", lengths, to=7)
    if not spec.dropped:
        return x, lengths
    lengths = graph("Sub", lengths, np.int64(spec.dropped))
    return part(graph, x, spec.dropped, END, 1), graph("Max", lengths, np.int64(0))


def halved(graph, x, convolution, before):
    """Convolve (N, C, T, F) with 3 x 3 taps and stride 2, after `before` zeros and before one on both axes.

    `convolution`: kernel, bias, groups.
    """
    kernel, offsets, groups = convolution
    padded = graph("Pad", x, [0, 0, before, before, 0, 0, 1, 1], np.float32(0))
    return graph("Conv", padded, kernel, offsets, kernel_shape=[3, 3], strides=[2, 2], group=groups)


def position_table(graph, total, spec):
    """Return the sines and cosines of relative positions from `total` - 1 to 1 - `total`, (1, 2 · total - 1, D)."""
    positions = np.arange(spec.positions - 1, -spec.positions, -1)[:, None]
    angles = positions * 10_000 ** (-np.arange(0, spec.hidden, 2) / spec.hidden)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(1, len(positions), -1).astype(np.float32)
    first = graph("Sub", np.int64(spec.positions), total)
    after = graph("Sub", graph("Add", total, np.int64(spec.positions)), np.int64(1))
    return part(graph, graph.constant(table), first, after, 1)


def masks(graph, total, lengths, seen, spec):
    """Return masks of frames (N, T') that are padding, and of cached and new frames (N, T', total) not to attend to."""
    places = graph("Range", np.int64(0), total, np.int64(1))
    chunks = graph("Div", places, np.int64(spec.frames))
    apart = graph("Sub", graph("Unsqueeze", chunks, [1]), graph("Unsqueeze", chunks, [0]))
    near = graph("LessOrEqual", apart, np.int64(spec.left // spec.frames))
    allowed = graph("Unsqueeze", graph("And", near, graph("GreaterOrEqual", apart, np.int64(0))), [0])
    rows = graph("Expand", places, shape(graph, size(graph, lengths, 0), total))  # (N, total)
    inside = graph("Less", rows, graph("Unsqueeze", graph("Add", lengths, np.int64(spec.left)), [-1]))
    first = graph("Add", graph("Neg", seen), np.int64(spec.left))
    valid = graph("And", graph("GreaterOrEqual", rows, graph("Unsqueeze", first, [-1])), inside)
    square = graph("Tile", graph("Unsqueeze", valid, [1]), shape(graph, 1, total, 1))
    square = graph("And", square, graph("Transpose", square, perm=[0, 2, 1]))
    hidden_places = graph("Not", graph("And", square, allowed))
    return part(graph, graph("Not", valid), spec.left, END, 1), part(graph, hidden_places, spec.left, END, 1)


def layer(graph, spec, x, caches, shared):
    """x (N, T', D) and its caches (N, left, D) and (N, D, kept), or None for each → x and the next caches.

    `shared`: table of positions, mask of padding, mask of attention, the same for every layer.
    """
    channel, time = caches
    positions, padding, hidden_places = shared
    count = spec.hidden
    x = graph("Add", x, graph("Mul", feed_forward(graph, spec, layer_norm(graph, x, count)), HALF))
    seen, channel = attention(graph, spec, layer_norm(graph, x, count), channel, (positions, hidden_places))
    x = graph("Add", x, seen)
    mixed, time = convolution(graph, spec, layer_norm(graph, x, count), time, padding)
    x = graph("Add", x, mixed)
    x = graph("Add", x, graph("Mul", feed_forward(graph, spec, layer_norm(graph, x, count)), HALF))
    return layer_norm(graph, x, count), channel, time


def feed_forward(graph, spec, x):
    inner = silu(graph, dense(graph, x, spec.hidden, spec.feedforward))
    return dense(graph, inner, spec.feedforward, spec.hidden, scale=2 * spec.feedforward**-0.5)


def attention(graph, spec, x, cache, shared):
    """Attend from x (N, T', D) to the cached frames (N, left, D) and x; return the result and the next cache."""
    positions, hidden_places = shared
    count, heads, each = spec.hidden, spec.heads, spec.hidden // spec.heads
    joined = x if cache is None else graph("Concat", cache, x, axis=1)  # (N, left + T', D)
    following = None
    if cache is not None:
        kept = size(graph, x, 1)
        following = graph("Concat", part(graph, cache, kept, END, 1), part(graph, x, 0, kept, 1), axis=1)
    rows = size(graph, x, 0)

    def split(values, batch):
        return graph("Reshape", values, shape(graph, batch, -1, heads, each))

    query = split(dense(graph, x, count, count, scale=1.5 * count**-0.5), rows)
    keys = split(dense(graph, joined, count, count, scale=1.5 * count**-0.5), rows)
    values = split(dense(graph, joined, count, count), rows)
    placed = split(graph.linear(positions, count, count), size(graph, positions, 0))
    keys, placed = (graph("Transpose", each, perm=[0, 2, 3, 1]) for each in (keys, placed))
    by_content, by_place = (
        graph("Transpose", graph("Add", query, graph.weight(heads, each, scale=0.5)), perm=[0, 2, 1, 3])
        for _ in range(2)
    )
    scores = graph("MatMul", by_content, keys)  # (N, heads, T', left + T')
    shifted = shift(graph, graph("MatMul", by_place, placed))
    shifted = part(graph, shifted, 0, size(graph, scores, 3), 3)
    scores = graph("Div", graph("Add", scores, shifted), np.float32(each**0.5))
    hidden_places = graph("Unsqueeze", hidden_places, [1])
    weights = graph("Softmax", graph("Where", hidden_places, MASKED, scores), axis=-1)
    weights = graph("Where", hidden_places, np.float32(0), weights)
    seen = graph("MatMul", weights, graph("Transpose", values, perm=[0, 2, 1, 3]))
    seen = graph("Reshape", graph("Transpose", seen, perm=[0, 2, 1, 3]), shape(graph, rows, -1, count))
    return dense(graph, seen, count, count, scale=3 * count**-0.5), following


def shift(graph, scores):
    """Move row i of scores by relative position (N, heads, T', P) left by T' - 1 - i, by padding and reshaping."""
    sizes = [size(graph, scores, axis) for axis in range(4)]
    padded = graph("Pad", scores, [0, 0, 0, 1, 0, 0, 0, 0], np.float32(0))
    padded = graph("Reshape", padded, shape(graph, *sizes[:2], -1, sizes[2]))
    return graph("Reshape", part(graph, padded, 1, END, 2), shape(graph, *sizes))


def convolution(graph, spec, x, cache, padding):
    """Apply the convolution module to (N, T', D) with its cache (N, D, kept); return the result and the next cache.

    Without a cache its taps are centered on a frame, and its batch normalization is part of their weights.
    """
    count = spec.hidden
    x = gated(
        graph, pointwise(graph, graph("Transpose", x, perm=[0, 2, 1]), count, 2 * count, scale=2 * count**-0.5), 1
    )
    x = graph("Where", graph("Unsqueeze", padding, [1]), np.float32(0), x)
    if cache is None:
        x = depthwise(graph, x, count, spec.kept + 1, pads=(spec.kept // 2, spec.kept // 2))
    else:
        joined = graph("Concat", cache, x, axis=2)  # (N, D, kept + T')
        x = graph("Transpose", depthwise(graph, joined, count, spec.kept + 1), perm=[0, 2, 1])
        x = graph("Transpose", layer_norm(graph, x, count), perm=[0, 2, 1])
    x = pointwise(graph, silu(graph, x), count, count, scale=2 * count**-0.5)
    x = graph("Transpose", x, perm=[0, 2, 1])
    return x, None if cache is None else part(graph, joined, -spec.kept, END, 2)
