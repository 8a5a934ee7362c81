"""icefall's streaming zipformer as its exporter writes it, with random weights: a zipformer2-ctc file.

Nodes and their order are those of a released export, so that its speed and its bits say something about released
models. Stacks run at reduced rates; each layer has six states. Hidden values are (T, N, D), inner frames 20 ms, output
frames 40 ms. Weights are scaled so that every branch counts.

Source: icefall's Zipformer2, Conv2dSubsampling and ChunkCausalDepthwiseConv1d, and its export script for streaming CTC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .exporting import (
    END,
    bias,
    bias_norm,
    bypass,
    dense,
    depthwise,
    downsample,
    part,
    shape,
    size,
    swoosh,
    upsample,
    with_width,
)

EMBED_CHANNELS, EMBED_LEFT = 128, 3
SPREAD = {"": (-9.0, 4.0), "whisper": (0.0, 0.6)}  # mean and deviation of the features of speech

INT32, BOOL = 6, 9
EMBED_CONVOLUTIONS = ((8, [1, 1], [0, 1] * 2), (32, [2, 2], [0] * 4), (EMBED_CHANNELS, [1, 2], [0] * 4))
"""Channels, strides and padding of the convolutions of 3 x 3 taps."""
CONVNEXT_TAPS, CONVNEXT_RATIO = 7, 3
MASKED = np.float32(-1_000)
POSITION_HEAD = 4  # numbers of a head's query for positions


@dataclass(frozen=True, slots=True)
class Zipformer:
    """Sizes in the metadata, one value per stack, and further sizes of the weights."""

    encoder_dims: tuple = (16, 24)
    num_encoder_layers: tuple = (2, 1)
    cnn_module_kernels: tuple = (7, 5)
    left_context_len: tuple = (16, 8)
    num_heads: tuple = (2, 2)
    query_head_dims: tuple = (4, 4)
    value_head_dims: tuple = (4, 3)
    feedforward_dims: tuple = (24, 32)
    position_size: int = 12
    positions: int = 200  # most frames that the table of relative positions is for
    bins: int = 80  # mel bins of a feature frame
    window: int = 45
    shift: int = 32
    feature: str = ""
    joiner_dim: int = 24  # these two only for the transducer
    context_size: int = 2
    exported: bool = False  # decoder and joiner as icefall exports them

    @property
    def embedded(self):
        """Mel bins after the embedding."""
        return ((self.bins - 3) // 2 - 2) // 2 + 1

    @property
    def inner_frames(self):
        return self.shift // 2

    def metadata(self, comment):
        lists = ("encoder_dims", "query_head_dims", "value_head_dims", "num_heads", "num_encoder_layers")
        lists += ("cnn_module_kernels", "left_context_len")
        values = {name: ",".join(map(str, getattr(self, name))) for name in lists}
        values |= {"model_type": "zipformer2", "version": "1", "model_author": "probe", "comment": comment}
        values |= {"T": self.window, "decode_chunk_len": self.shift}
        return values | ({"feature": self.feature} if self.feature else {})


MEDIUM = {
    "encoder_dims": (192, 256, 256, 256, 256, 256),
    "num_encoder_layers": (2,) * 6,
    "cnn_module_kernels": (31, 31, 15, 15, 15, 31),
    "left_context_len": (128, 64, 32, 16, 32, 64),
    "num_heads": (4, 4, 4, 8, 4, 4),
    "query_head_dims": (32,) * 6,
    "value_head_dims": (12,) * 6,
    "feedforward_dims": (512, 768, 768, 768, 768, 768),
    "position_size": 48,
    "positions": 2_000,
}
LARGE = MEDIUM | {
    "encoder_dims": (192, 256, 384, 512, 384, 256),
    "num_encoder_layers": (2, 2, 3, 4, 3, 2),
    "feedforward_dims": (512, 768, 1024, 1536, 1024, 768),
}
SIZES = {"small": {}, "22m": MEDIUM, "65m": LARGE}


def write_ctc(graph, spec, vocabulary):
    """The graph of a zipformer2-ctc file: its metadata."""
    encoder, frames = Encoder(graph, spec), spec.shift // 4
    hidden = encoder.hidden()
    count = max(spec.encoder_dims)
    offsets = graph.constant(np.zeros(vocabulary, np.float32), "bias")
    scores = graph("Add", offsets, graph.linear(hidden, count, vocabulary, scale=2 * count**-0.5))
    graph.output(graph("LogSoftmax", scores, axis=-1), "log_probs", ["N", frames, vocabulary])
    encoder.give_states()
    return spec.metadata("streaming ctc zipformer2")


def write_frames(graph, spec):
    """The graph of an encoder of a zipformer2-transducer, with the joiner's projection of its frames."""
    encoder, count = Encoder(graph, spec), max(spec.encoder_dims)
    offsets = graph.constant(np.zeros(spec.joiner_dim, np.float32))
    frames = graph("Add", offsets, graph.linear(encoder.hidden(), count, spec.joiner_dim, scale=2 * count**-0.5))
    graph.output(frames, "encoder_out", ["N", spec.shift // 4, spec.joiner_dim])
    encoder.give_states()


def full_width(graph, outputs, sizes):
    """Return the last output with the channels that it lacks from the last output that has them."""
    pieces, width = [outputs[-1]], sizes[-1]
    for output, count in zip(outputs[-2::-1], sizes[-2::-1], strict=True):
        if count > width:
            pieces.append(part(graph, output, width, count, 2))
            width = count
    return graph("Concat", *pieces, axis=-1)


def compact_positions(spec):
    """Return the table of relative positions, (2 · positions - 1, position_size) float32; its last column is 1."""
    places = np.arange(1 - spec.positions, spec.positions)[:, None]
    length = spec.position_size**0.5
    compressed = length * np.sign(places) * np.log1p(np.abs(places) / length)
    angles = np.arctan(compressed * 2 * np.pi / spec.position_size) * np.arange(1, spec.position_size // 2 + 1)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(len(places), -1)
    table[:, -1] = 1
    return table.astype(np.float32)


class Encoder:
    """Builder of the encoder's nodes in the order of the exporter; state inputs come in the published order."""

    def __init__(self, graph, spec):
        self.graph, self.spec = graph, spec
        self.next_states = []  # (value, name, shape, dtype), declared after the first output
        self.table = graph.constant(compact_positions(spec))

    def hidden(self):
        """Declare the inputs and build all layers; return the output frames (N, T', largest D)."""
        graph, spec = self.graph, self.spec
        x = graph.input("x", ["N", spec.window, spec.bins])
        shapes = [self.layer_states(stack, index) for stack, index in self.layers()]
        embed_shape = ["N", EMBED_CHANNELS, EMBED_LEFT, spec.embedded]
        graph.input("embed_states", embed_shape)
        graph.input("processed_lens", ["N"], "int64")
        x, kept = self.embedding(x)
        mask = self.padding(size(graph, x, 0))
        counted = graph("Add", "processed_lens", np.asarray([spec.inner_frames], np.int64))
        x = graph("Transpose", x, perm=[1, 0, 2])  # (T, N, D)
        width, taken, outputs = spec.encoder_dims[0], 0, []
        for stack, layers in enumerate(spec.num_encoder_layers):
            x = with_width(graph, x, width, spec.encoder_dims[stack])
            width = spec.encoder_dims[stack]
            x = self.stack(x, stack, shapes[taken : taken + layers], taken, mask)
            taken += layers
            outputs.append(x)
        self.next_states.append((kept, "new_embed_states", embed_shape, "float32"))
        self.next_states.append((counted, "new_processed_lens", ["N"], "int64"))
        x = downsample(graph, full_width(graph, outputs, spec.encoder_dims), 2)
        return graph("Transpose", x, perm=[1, 0, 2])

    def give_states(self):
        """Declare the outputs of the next states."""
        for value, name, sizes, dtype in self.next_states:
            self.graph.output(value, name, sizes, dtype)
            self.graph.states.append((name.removeprefix("new_"), name))

    def layers(self):
        stacks = np.repeat(np.arange(len(self.spec.num_encoder_layers)), self.spec.num_encoder_layers)
        return [(int(stack), index) for index, stack in enumerate(stacks)]

    def layer_states(self, stack, index):
        spec = self.spec
        left, size, kept = spec.left_context_len[stack], spec.encoder_dims[stack], spec.cnn_module_kernels[stack] // 2
        keys = spec.query_head_dims[stack] * spec.num_heads[stack]
        values = spec.value_head_dims[stack] * spec.num_heads[stack]
        shapes = {
            "cached_key": [left, "N", keys],
            "cached_nonlin_attn": [1, "N", left, 3 * size // 4],
            "cached_val1": [left, "N", values],
            "cached_val2": [left, "N", values],
            "cached_conv1": ["N", size, kept],
            "cached_conv2": ["N", size, kept],
        }
        for name, sizes in shapes.items():
            self.graph.input(f"{name}_{index}", sizes)
        return shapes

    def embedding(self, x):
        """Mel frames (N, window, 80) → frames of 20 ms (N, T, D) and the next state: three convolutions, a ConvNeXt."""
        graph, spec = self.graph, self.spec
        x, before = graph("Unsqueeze", x, [1]), 1
        mean, deviation = SPREAD[spec.feature]
        for count, strides, pads in EMBED_CONVOLUTIONS:
            kernel = graph.weight(count, before, 3, 3, scale=2 / 3 * before**-0.5 / (deviation if before == 1 else 1))
            offsets = bias(graph, count)
            if before == 1:  # released weights have learned the features' mean, random ones are given it
                graph.initializers[offsets] -= mean * graph.initializers[kernel].sum((1, 2, 3))
            x = graph("Conv", x, kernel, offsets, kernel_shape=[3, 3], strides=strides, pads=pads)
            x, before = swoosh(graph, x, "R", "max"), count
        frames = graph("Sub", size(graph, x, 2), np.int64(EMBED_LEFT))
        around = part(graph, x, 0, frames, 2)
        joined = graph("Concat", "embed_states", x, axis=2)
        kept = part(graph, joined, frames, graph("Add", frames, np.int64(EMBED_LEFT)), 2)
        x = graph("Add", around, self.convnext(joined))
        x = graph("Transpose", x, perm=[0, 2, 1, 3])  # (N, T, 128, 19)
        x = graph("Reshape", x, shape(graph, size(graph, x, 0), size(graph, x, 1), EMBED_CHANNELS * spec.embedded))
        x = dense(graph, x, EMBED_CHANNELS * spec.embedded, spec.encoder_dims[0])
        return bias_norm(graph, x, spec.encoder_dims[0]), kept

    def convnext(self, x):
        graph, count, inner = self.graph, EMBED_CHANNELS, CONVNEXT_RATIO * EMBED_CHANNELS
        taps, side = [CONVNEXT_TAPS] * 2, CONVNEXT_TAPS // 2
        kernel = graph.weight(count, 1, *taps, scale=1 / CONVNEXT_TAPS)
        x = graph("Conv", x, kernel, bias(graph, count), kernel_shape=taps, group=count, pads=[0, side, 0, side])
        kernel = graph.weight(inner, count, 1, 1, scale=3 * count**-0.5)
        x = graph("Conv", x, kernel, bias(graph, inner), kernel_shape=[1, 1])
        x = swoosh(graph, x, "L", "max")
        kernel = graph.weight(count, inner, 1, 1, scale=2 * inner**-0.5)
        return graph("Conv", x, kernel, bias(graph, count), kernel_shape=[1, 1])

    def padding(self, rows):
        """Return the mask of left context that no frame was processed for, then zeros: (N, left + T) int32."""
        graph, left = self.graph, max(self.spec.left_context_len)
        places = graph("Expand", np.arange(left), shape(graph, rows, left))
        empty = graph("LessOrEqual", graph("Unsqueeze", "processed_lens", [1]), places)
        empty = graph("Slice", graph("Cast", empty, to=INT32), [-1], [-END], [1], [-1])
        zeros = graph("Expand", np.zeros((1, 1), np.int32), shape(graph, rows, self.spec.inner_frames))
        return graph("Concat", empty, zeros, axis=1)

    def stack(self, x, stack, shapes, first, mask):
        """Apply all layers of a stack at its own rate; a stack of a lower rate is combined with its input."""
        graph, factor = self.graph, self.downsampling(stack)
        mask = graph("Slice", mask, [0], [END], [1], [factor])
        inside = downsample(graph, x, factor) if factor > 1 else x
        frames, left = size(graph, inside, 0), self.spec.left_context_len[stack]
        begin = graph("Sub", np.int64(self.spec.positions - left), frames)
        end = graph("Add", frames, np.int64(self.spec.positions - 1))
        positions = graph("Unsqueeze", part(graph, self.table, begin, end, 0), [0])
        for offset, each in enumerate(shapes):
            inside = self.layer(inside, stack, (each, first + offset), mask, positions)
        if factor == 1:
            return inside
        inside = part(graph, upsample(graph, inside, factor), 0, size(graph, x, 0), 0)
        return bypass(graph, x, inside, self.spec.encoder_dims[stack])

    def downsampling(self, stack):
        """Return the rate of a stack, from its left context: all left contexts span the same time."""
        factor, rest = divmod(max(self.spec.left_context_len), self.spec.left_context_len[stack])
        return factor if rest == 0 and self.spec.inner_frames % factor == 0 else 1

    def keep(self, kind, index, value, shape):
        self.next_states.append((value, f"new_{kind}_{index}", shape, "float32"))

    def layer(self, x, stack, states, mask, positions):
        """Apply a layer; `states`: the shapes of its states and its index."""
        graph, spec, (shapes, index) = self.graph, self.spec, states
        count, inner = spec.encoder_dims[stack], spec.feedforward_dims[stack]
        entered, following = x, {}
        new = graph("Slice", mask, [spec.left_context_len[stack]], [END], [1])
        weights = self.weights(x, stack, index, mask, positions, following)
        x = graph("Add", x, self.feed_forward(x, count, inner * 3 // 4))
        x = graph("Add", x, self.nonlinear(x, stack, index, weights, following))
        x = graph("Add", x, self.attention(x, stack, f"cached_val1_{index}", weights, following))
        x = graph("Add", x, self.convolution(x, stack, f"cached_conv1_{index}", new, following))
        x = graph("Add", x, self.feed_forward(x, count, inner))
        x = bypass(graph, entered, x, count)
        x = graph("Add", x, self.attention(x, stack, f"cached_val2_{index}", weights, following))
        x = graph("Add", x, self.convolution(x, stack, f"cached_conv2_{index}", new, following))
        x = graph("Add", x, self.feed_forward(x, count, inner * 5 // 4))
        for name, each in shapes.items():
            self.keep(name, index, following[f"{name}_{index}"], each)
        return bypass(graph, entered, bias_norm(graph, x, count), count)

    def joined(self, name, x, left, axis, following):
        """Return a cache followed by x, and note the next cache."""
        both = self.graph("Concat", name, x, axis=axis)
        following[name] = part(self.graph, both, -left, END, axis)
        return both

    def weights(self, x, stack, index, mask, positions, following):  # noqa: PLR0917 - one place
        """Return attention weights (heads, N, T, left + T) from content and relative positions."""
        graph, spec = self.graph, self.spec
        heads, each, left = spec.num_heads[stack], spec.query_head_dims[stack], spec.left_context_len[stack]
        queries, placed = heads * each, heads * POSITION_HEAD
        count = spec.encoder_dims[stack]
        x = dense(graph, x, count, 2 * queries + placed, scale=1.5 * each**-0.25 * count**-0.5)
        frames, rows = size(graph, x, 0), size(graph, x, 1)
        query, key = part(graph, x, 0, queries, 2), part(graph, x, queries, 2 * queries, 2)
        place = part(graph, x, 2 * queries, END, 2)
        key = self.joined(f"cached_key_{index}", key, left, 0, following)
        places = size(graph, key, 0)
        query = graph("Transpose", graph("Reshape", query, shape(graph, frames, rows, heads, each)), perm=[2, 1, 0, 3])
        place = graph("Reshape", place, shape(graph, frames, rows, heads, POSITION_HEAD))
        place = graph("Transpose", place, perm=[2, 1, 0, 3])
        key = graph("Transpose", graph("Reshape", key, shape(graph, places, rows, heads, each)), perm=[2, 1, 3, 0])
        scores = graph("MatMul", query, key)
        table = graph.linear(positions, spec.position_size, placed)
        relative = graph("Sub", graph("Add", graph("Mul", frames, np.int64(2)), np.int64(left)), np.int64(1))
        table = graph("Reshape", table, shape(graph, -1, relative, heads, POSITION_HEAD))
        shifted = self.shift(graph("MatMul", place, graph("Transpose", table, perm=[2, 0, 3, 1])), places)
        scores = graph("Add", scores, shifted)
        hidden = graph("Unsqueeze", graph("Cast", mask, to=BOOL), [1])
        return graph("Softmax", graph("Where", hidden, MASKED, scores), axis=-1)

    def shift(self, scores, places):
        """Pick scores by position of those by relative position (heads, N, T, P) → (heads, N, T, places)."""
        graph = self.graph
        heads, rows, frames, relative = (size(graph, scores, axis) for axis in range(4))
        first = graph("Range", graph("Sub", frames, np.int64(1)), np.int64(-1), np.int64(-1))
        first = graph("Tile", first, shape(graph, graph("Mul", rows, heads)))
        columns = graph("Range", np.int64(0), places, np.int64(1))
        picked = graph("Add", graph("Unsqueeze", first, [-1]), columns)
        flat = graph("Reshape", scores, shape(graph, -1, relative))
        return graph(
            "Reshape", graph("GatherElements", flat, picked, axis=1), shape(graph, heads, rows, frames, places)
        )

    def feed_forward(self, x, count, inner):
        graph = self.graph
        x = swoosh(graph, dense(graph, x, count, inner, scale=3 * count**-0.5), "L", "where")
        return dense(graph, x, inner, count, scale=1.5 * inner**-0.5)

    def nonlinear(self, x, stack, index, weights, following):
        """Gate a mix of frames by the first head's weights: the module of nonlinear attention."""
        graph, count, left = self.graph, self.spec.encoder_dims[stack], self.spec.left_context_len[stack]
        inner = 3 * count // 4
        x = dense(graph, x, count, 3 * inner, scale=1.5 * count**-0.5)
        frames, rows = size(graph, x, 0), size(graph, x, 1)
        gate, x, after = graph("Split", x, outputs=3, axis=2)
        gate = graph("Reshape", graph("Unsqueeze", graph("Tanh", gate), [-1]), shape(graph, frames, rows, inner))
        x = graph("Reshape", graph("Mul", x, gate), shape(graph, frames, rows, 1, -1))
        x = graph("Transpose", x, perm=[2, 1, 0, 3])  # (1, N, T, 3/4 D)
        x = self.joined(f"cached_nonlin_attn_{index}", x, left, 2, following)
        x = graph("MatMul", part(graph, weights, 0, 1, 0), x)
        x = graph("Reshape", graph("Transpose", x, perm=[2, 1, 0, 3]), shape(graph, frames, rows, -1))
        return dense(graph, graph("Mul", x, after), inner, count, scale=2 * inner**-0.5)

    def attention(self, x, stack, name, weights, following):
        """Mix the cached and new values (left + T, N, heads · d) by the weights."""
        graph, heads, count = self.graph, self.spec.num_heads[stack], self.spec.encoder_dims[stack]
        values = heads * self.spec.value_head_dims[stack]
        frames, rows = size(graph, x, 0), size(graph, x, 1)
        x = dense(graph, x, count, values)
        x = self.joined(name, x, self.spec.left_context_len[stack], 0, following)
        x = graph("Reshape", x, shape(graph, size(graph, x, 0), rows, heads, -1))
        x = graph("MatMul", weights, graph("Transpose", x, perm=[2, 1, 0, 3]))
        x = graph("Reshape", graph("Transpose", x, perm=[2, 1, 0, 3]), shape(graph, frames, rows, values))
        return dense(graph, x, values, count, scale=2 * values**-0.5)

    def convolution(self, x, stack, name, hidden, following):
        """Add a causal depthwise convolution and one within the chunk, scaled near its edges."""
        graph, count, taps = self.graph, self.spec.encoder_dims[stack], self.spec.cnn_module_kernels[stack]
        x, gate = graph("Split", dense(graph, x, count, 2 * count, scale=1.5 * count**-0.5), outputs=2, axis=2)
        x = graph("Transpose", graph("Mul", x, graph("Sigmoid", gate)), perm=[1, 2, 0])  # (N, D, T)
        hidden = graph("Unsqueeze", graph("Cast", hidden, to=BOOL), [1])
        x = graph("Where", graph("Expand", hidden, graph("Shape", x)), np.float32(0), x)
        x = self.joined(name, x, taps // 2, 2, following)
        causal = depthwise(graph, x, count, taps // 2 + 1)
        chunk = part(graph, x, taps // 2, END, 2)
        chunk = depthwise(graph, chunk, count, taps, pads=(taps // 2, taps // 2))
        chunk = graph("Mul", chunk, self.edge_scale(stack))
        x = graph("Transpose", graph("Add", chunk, causal), perm=[2, 0, 1])
        x = swoosh(graph, x, "R", "where")
        return dense(graph, x, count, count, scale=1.5 * count**-0.5)

    def edge_scale(self, stack):
        """Return 1 plus corrections near the left and the right edge of a chunk, (D, T)."""
        graph, taps, count = self.graph, self.spec.cnn_module_kernels[stack], self.spec.encoder_dims[stack]
        frames = self.spec.inner_frames // self.downsampling(stack)
        learned = graph.weight(2, count, taps, scale=0.3)
        left, right = (graph("Gather", learned, np.int64(edge), axis=0) for edge in range(2))
        if frames < taps:
            left, right = part(graph, left, 0, frames, 1), part(graph, right, -frames, END, 1)
        else:
            rest = np.zeros((count, frames - taps), np.float32)
            left, right = graph("Concat", left, rest, axis=-1), graph("Concat", rest, right, axis=-1)
        return graph("Add", graph("Add", left, right), np.float32(1))
