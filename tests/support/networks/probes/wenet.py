"""WeNet's streaming CTC conformer with random weights: the host keeps the offset, the size of the cache and the mask.

The attention cache (blocks, heads, places, keys and values) and the convolution cache have no batch axis: one stream.
Output frames are 40 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import FLOAT
from .layers import (
    MASKED,
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
from .running import WENET_CHUNK, WENET_LEFT_CHUNKS

MELS = 80
SUBSAMPLING, RIGHT_CONTEXT = 4, 6
MEAN, DEVIATION = 11.0, 4.0  # of the log-mel energies of samples that are not scaled to 1
PERIOD = 29.0  # output frames


@dataclass(frozen=True, slots=True)
class WeNet:
    """The sizes in the metadata; the chunk is sherpa-onnx's."""

    num_blocks: int = 2
    head: int = 2
    output_size: int = 16
    cnn_module_kernel: int = 5
    feedforward: int = 24

    @property
    def window(self):
        return (WENET_CHUNK - 1) * SUBSAMPLING + RIGHT_CONTEXT + 1

    @property
    def shift(self):
        return WENET_CHUNK * SUBSAMPLING

    @property
    def places(self):
        return WENET_CHUNK * WENET_LEFT_CHUNKS

    def metadata(self, vocabulary):
        names = ("head", "num_blocks", "output_size", "cnn_module_kernel")
        values = {name: getattr(self, name) for name in names}
        values |= {"right_context": RIGHT_CONTEXT, "subsampling_factor": SUBSAMPLING, "vocab_size": vocabulary}
        values |= {"chunk_size": WENET_CHUNK, "left_chunks": WENET_LEFT_CHUNKS}
        return values | {"model_type": "wenet_ctc", "version": "1", "model_author": "wenet", "comment": "streaming"}


MEDIUM = {"num_blocks": 12, "head": 4, "output_size": 64, "cnn_module_kernel": 15, "feedforward": 128}
SIZES = {"small": {}, "medium": MEDIUM}


def write_ctc(graph, spec, vocabulary):
    """The graph of a wenet-ctc file: its metadata."""
    x = graph.input("x", [1, spec.window, MELS])
    offset = graph.input("offset", [1], "int64")
    required = graph.input("required_cache_size", [1], "int64")
    size, kept = spec.output_size, spec.cnn_module_kernel - 1
    attention_shape = [spec.num_blocks, spec.head, spec.places, size // spec.head * 2]
    convolution_shape = [spec.num_blocks, 1, size, kept]
    attention = graph.input("attn_cache", attention_shape)
    convolution = graph.input("conv_cache", convolution_shape)
    mask = graph.input("attn_mask", [1, 1, spec.places + WENET_CHUNK], "bool")
    bias = graph("Unsqueeze", graph("Where", mask, np.float32(0), np.float32(MASKED)), [0])
    hidden = embedding(graph, x, spec)
    attentions, convolutions = [], []
    for index in range(spec.num_blocks):
        caches = [graph.slice(cache, index, index + 1, 0) for cache in (attention, convolution)]
        hidden, joined, rest = block(graph, spec, hidden, caches, bias)
        attentions.append(graph("Slice", joined, graph("Neg", required), [np.iinfo(np.int64).max], [2]))
        convolutions.append(graph("Unsqueeze", rest, [0]))
    count = graph("Cast", offset, to=FLOAT)
    clock = clock_of_count(graph, count, WENET_CHUNK, 1, PERIOD)
    hidden = graph("Add", hidden, clock_values(graph, *clock, size))
    graph.output(ctc_head(graph, hidden, size, vocabulary), "log_probs", [1, WENET_CHUNK, vocabulary])
    graph.output(graph("Concat", *attentions, axis=0), "next_att_cache", attention_shape)
    graph.output(graph("Concat", *convolutions, axis=0), "next_conv_cache", convolution_shape)
    graph.states += [("attn_cache", "next_att_cache"), ("conv_cache", "next_conv_cache")]
    return spec.metadata(vocabulary)


def embedding(graph, x, spec):
    """Mel frames (1, 67, 80) → (1, 16, D)."""
    size = spec.output_size
    scaled = graph("Div", graph("Sub", x, np.float32(MEAN)), np.float32(DEVIATION))
    mixed = graph("Transpose", graph("MatMul", scaled, mel_weight(graph, MELS, size)), perm=[0, 2, 1])
    taps = RIGHT_CONTEXT + 1
    kernel = graph.weight(size, 1, taps, scale=taps**-0.5)
    frames = graph("Conv", mixed, kernel, group=size, kernel_shape=[taps], strides=[SUBSAMPLING])
    return graph("Tanh", graph("Transpose", frames, perm=[0, 2, 1]))


def block(graph, spec, x, caches, bias):
    """Return the result (1, T, D), all keys and values (1, heads, places + T, 2 d), the next convolution cache."""
    size, heads = spec.output_size, spec.head
    inner = size // heads
    query, key, value = (
        split_heads(graph, graph.linear(x, size, size, scale=scale * size**-0.5), heads, inner)
        for scale in (1.5, 1.5, 1.0)
    )
    joined = graph("Concat", caches[0], graph("Concat", key, value, axis=3), axis=2)
    key, value = graph("Split", joined, axis=3, outputs=2)
    weights = attention_weights(graph, query, key, bias, steps=WENET_CHUNK, places=spec.places + WENET_CHUNK)
    seen = join_heads(graph, graph("MatMul", weights, value), size)
    x = norm(graph, graph("Add", x, graph.linear(seen, size, size, scale=2 * size**-0.5)), size)
    cache = graph("Squeeze", caches[1], [0])  # (1, D, kernel - 1)
    mixed, rest = causal_convolution(graph, graph.linear(x, size, size), cache, size, spec.cnn_module_kernel - 1)
    x = graph.total(x, graph("Tanh", mixed), feed_forward(graph, x, size, spec.feedforward))
    return norm(graph, x, size), joined, rest
