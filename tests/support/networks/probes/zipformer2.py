"""The streaming zipformer with random weights: its encoder, for CTC and transducer, and the CTC file.

It has the shapes of the published graph: stacks of layers at reduced rates, six states per layer, the
embedding's state and the count of processed frames. Inner frames are 20 ms, output frames 40 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import FLOAT
from .layers import (
    age_mask,
    attention_weights,
    causal_convolution,
    clock_of_count,
    clock_values,
    ctc_head,
    feed_forward,
    join_heads,
    mel_weight,
    norm,
    split_heads,
)

MELS = 80
EMBEDDED = 19  # bins after the published embedding of 80
EMBED_CHANNELS, EMBED_LEFT = 128, 3
CLOCK_PERIOD = 61.0  # inner frames: 1.22 s, not a multiple of a chunk
SPREAD = {"": (-9.0, 4.0), "whisper": (0.0, 0.6)}  # mean and deviation of the features of speech


@dataclass(frozen=True, slots=True)
class Zipformer2:
    """Sizes in the metadata, one value per stack, and further sizes of the weights."""

    encoder_dims: tuple = (16, 24)
    num_encoder_layers: tuple = (2, 1)
    cnn_module_kernels: tuple = (7, 5)
    left_context_len: tuple = (16, 8)
    num_heads: tuple = (2, 2)
    query_head_dims: tuple = (4, 4)
    value_head_dims: tuple = (4, 3)
    feedforward_dims: tuple = (24, 32)
    feedforwards: int = 1  # in each layer
    window: int = 45
    shift: int = 32
    feature: str = ""
    joiner_dim: int = 24  # these two only for the transducer
    context_size: int = 2

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


PUBLISHED = {
    "encoder_dims": (192, 256, 384, 512, 384, 256),
    "num_encoder_layers": (2, 2, 3, 4, 3, 2),
    "cnn_module_kernels": (31, 31, 15, 15, 15, 31),
    "left_context_len": (128, 64, 32, 16, 32, 64),
    "num_heads": (4, 4, 4, 8, 4, 4),
    "query_head_dims": (32,) * 6,
    "value_head_dims": (12,) * 6,
    "feedforward_dims": (512, 768, 1024, 1536, 1024, 768),
    "feedforwards": 3,
    "joiner_dim": 512,
}
MEDIUM = PUBLISHED | {
    "encoder_dims": (32, 48, 64, 96, 64, 48),
    "query_head_dims": (8,) * 6,
    "value_head_dims": (4,) * 6,
    "feedforward_dims": (64, 96, 128, 192, 128, 96),
    "feedforwards": 2,
    "joiner_dim": 96,
}
SIZES = {"small": {}, "medium": MEDIUM, "large": PUBLISHED}


class Encoder:
    """Builder of the encoder's nodes; state inputs are declared at their first use, in the published order."""

    def __init__(self, graph, spec):
        self.graph, self.spec = graph, spec
        self.clock = None  # cosine and sine (N, T') of the output frames, once they are built
        self.next_states = []  # (value, name, shape, dtype), declared after the first output

    def hidden(self, size):
        """Declare the inputs and build all layers; return the output frames (N, T', size)."""
        graph, spec = self.graph, self.spec
        x = graph.input("x", ["N", spec.window, MELS])
        states = [self.layer_states(stack, index) for stack, index in self.layers()]
        embed_shape = ["N", EMBED_CHANNELS, EMBED_LEFT, EMBEDDED]
        graph.input("embed_states", embed_shape)
        graph.input("processed_lens", ["N"], "int64")
        hidden = self.embedding(x, "embed_states", spec.encoder_dims[0])
        width, taken = spec.encoder_dims[0], 0
        for stack, layers in enumerate(spec.num_encoder_layers):
            entered = graph.linear(hidden, width, spec.encoder_dims[stack])
            width = spec.encoder_dims[stack]
            hidden = self.stack(entered, stack, states[taken : taken + layers], taken)
            taken += layers
        embed_next, counted = self.next_states.pop(0), self.spec.inner_frames
        self.next_states.append(embed_next)
        after = graph("Add", "processed_lens", np.int64(counted))
        self.next_states.append((after, "new_processed_lens", ["N"], "int64"))
        return self.output_frames(hidden, width, size)

    def give_states(self):
        """Declare the outputs of the next states."""
        for value, name, shape, dtype in self.next_states:
            self.graph.output(value, name, shape, dtype)
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
        for name, shape in shapes.items():
            self.graph.input(f"{name}_{index}", shape)
        return shapes

    def embedding(self, x, state, size):
        """Frames of 10 ms (N, T, 80) and three older frames → frames of 20 ms (N, shift / 2, size)."""
        graph, spec = self.graph, self.spec
        mean, deviation = SPREAD[spec.feature]
        scaled = graph("Div", graph("Sub", x, np.float32(mean)), np.float32(deviation))
        bins = graph("Transpose", graph("MatMul", scaled, mel_weight(graph, MELS, EMBEDDED)), perm=[0, 2, 1])
        taps = spec.window - spec.shift + 1  # uses the last frame of the window too
        kernel = graph.weight(EMBEDDED, 1, taps, scale=taps**-0.5)
        frames = graph("Conv", bins, kernel, group=EMBEDDED, kernel_shape=[taps], strides=[2])  # (N, 19, shift / 2)
        frames = graph("Unsqueeze", graph("Tanh", graph("Transpose", frames, perm=[0, 2, 1])), [1])
        channels = graph("Mul", frames, graph.weight(EMBED_CHANNELS, 1, 1, scale=1.0))  # (N, 128, T, 19)
        joined = graph("Concat", state, channels, axis=2)
        shape = ["N", EMBED_CHANNELS, EMBED_LEFT, EMBEDDED]
        self.next_states.append((graph.last(joined, EMBED_LEFT, 2), "new_embed_states", shape, "float32"))
        kernel = graph.weight(EMBED_CHANNELS, 1, EMBED_LEFT + 1, 1, scale=0.5)
        mixed = graph("Conv", joined, kernel, group=EMBED_CHANNELS, kernel_shape=[EMBED_LEFT + 1, 1])
        # not a ReduceSum: ONNX Runtime adds in another order for one row than for several
        kernel = graph.weight(1, EMBED_CHANNELS, 1, 1, scale=EMBED_CHANNELS**-0.5)
        weighted = graph("Squeeze", graph("Conv", mixed, kernel, kernel_shape=[1, 1]), [1])  # (N, shift / 2, 19)
        return graph.linear(weighted, EMBEDDED, size, scale=1.0)

    def stack(self, hidden, stack, shapes, first):
        """Apply all layers of a stack at its own rate and add them to its input."""
        graph, spec = self.graph, self.spec
        size, factor = spec.encoder_dims[stack], self.downsampling(stack)
        inside = hidden
        if factor > 1:
            inside = graph("ReduceMean", graph("Reshape", hidden, [0, -1, factor, size]), axes=[2], keepdims=0)
        steps, left = spec.inner_frames // factor, spec.left_context_len[stack]
        mask = age_mask(graph, "processed_lens", factor * np.arange(left, 0, -1), steps)
        for offset, shape in enumerate(shapes):
            inside = self.layer(inside, stack, shape, first + offset, mask)
        if factor > 1:
            repeated = graph("Expand", graph("Unsqueeze", inside, [2]), [1, 1, factor, 1])
            inside = graph("Reshape", repeated, [0, -1, size])
        return graph("Add", inside, graph("Mul", hidden, np.float32(0.5)))

    def downsampling(self, stack):
        """Return the rate of a stack, from its left context: all left contexts span the same time."""
        factor, rest = divmod(max(self.spec.left_context_len), self.spec.left_context_len[stack])
        return factor if rest == 0 and self.spec.inner_frames % factor == 0 else 1

    def layer(self, x, stack, shapes, index, mask):
        graph, spec = self.graph, self.spec
        size, heads = spec.encoder_dims[stack], spec.num_heads[stack]
        steps, left = spec.inner_frames // self.downsampling(stack), spec.left_context_len[stack]
        query_size, values = spec.query_head_dims[stack], spec.value_head_dims[stack] * heads

        def cached(kind, new, axis, kept):
            joined = graph("Concat", f"{kind}_{index}", new, axis=axis)
            self.keep(kind, index, graph.last(joined, kept, axis), shapes[kind])
            return joined

        key = cached("cached_key", self.time_first(graph.linear(x, size, query_size * heads)), 0, left)
        query = split_heads(graph, graph.linear(x, size, query_size * heads, scale=2 * size**-0.5), heads, query_size)
        weights = attention_weights(
            graph, query, self.cached_heads(key, heads, query_size), mask, steps=steps, places=left + steps
        )
        parts = [x]
        parts += [feed_forward(graph, x, size, spec.feedforward_dims[stack]) for _ in range(spec.feedforwards)]
        nonlinear = graph("Unsqueeze", graph("Tanh", graph.linear(x, size, 3 * size // 4)), [0])
        nonlinear = cached("cached_nonlin_attn", nonlinear, 2, left)  # (1, N, left + T, 3/4 D)
        one_head = graph("Squeeze", graph.slice(weights, 0, 1, 1), [1])  # (N, T, left + T)
        seen = graph("MatMul", one_head, graph("Squeeze", nonlinear, [0]))
        parts.append(graph.linear(seen, 3 * size // 4, size, scale=2 * size**-0.5))
        for kind in ("cached_val1", "cached_val2"):
            value = cached(kind, self.time_first(graph.linear(x, size, values)), 0, left)
            seen = graph("MatMul", weights, self.cached_heads(value, heads, values // heads))
            parts.append(graph.linear(join_heads(graph, seen, values), values, size, scale=1.5 * values**-0.5))
        for kind in ("cached_conv1", "cached_conv2"):
            mixed = graph.linear(x, size, size)
            result, kept = causal_convolution(
                graph, mixed, f"{kind}_{index}", size, spec.cnn_module_kernels[stack] // 2
            )
            self.keep(kind, index, kept, shapes[kind])
            parts.append(result)
        return norm(graph, graph.total(*parts), size)

    def keep(self, kind, index, value, shape):
        self.next_states.append((value, f"new_{kind}_{index}", shape, "float32"))

    def time_first(self, x):
        return self.graph("Transpose", x, perm=[1, 0, 2])

    def cached_heads(self, x, heads, size):
        """(places, N, heads · size) → (N, heads, places, size)."""
        return self.graph("Transpose", self.graph("Reshape", x, [0, -1, heads, size]), perm=[1, 2, 0, 3])

    def output_frames(self, hidden, width, size):
        """Frames of 20 ms (N, T, width) in pairs → (N, T / 2, size), with the clock of the processed frames."""
        graph, frames = self.graph, self.spec.inner_frames // 2
        paired = graph("Reshape", hidden, [0, -1, 2 * width])
        count = graph("Cast", "processed_lens", to=FLOAT)
        cosine, sine = clock_of_count(graph, count, frames, 2, CLOCK_PERIOD)
        self.clock = cosine, sine
        clock = clock_values(graph, *self.clock, size)
        return graph("Add", graph("Tanh", graph.linear(paired, 2 * width, size)), clock)


def write_ctc(graph, spec, vocabulary):
    """The graph of a zipformer2-ctc file: its metadata."""
    size = max(spec.encoder_dims)
    encoder = Encoder(graph, spec)
    hidden = encoder.hidden(size)
    frames = spec.shift // 4
    graph.output(ctc_head(graph, hidden, size, vocabulary), "log_probs", ["N", frames, vocabulary])
    encoder.give_states()
    return spec.metadata("streaming ctc zipformer2")
