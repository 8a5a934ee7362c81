"""NeMo's Parakeet-unified encoder for buffered streaming, with random weights: a FastConformer without states.

Each window has its context on both sides. Attention is limited to chunks: a frame sees the left context, its own chunk
and the right context. Convolutions are centered, so all frames of a window depend on what is right of them.

Source: NeMo's ConformerEncoder with `chunked_limited_with_rc`; metadata of sherpa-onnx's export_onnx_streaming.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .exporting import shape, size
from .fastconformer import SUBSAMPLING, layer, position_table, subsampling

TYPE = "nemo_parakeet_unified_streaming"


@dataclass(frozen=True, slots=True)
class Parakeet:
    """The sizes in the metadata, and those of the weights; contexts and chunk in frames of 80 ms."""

    bins: int = 128
    left: int = 70
    chunk: int = 2
    right: int = 5
    layers: int = 2
    hidden: int = 64
    kept: int = 8  # taps of a convolution, less one
    heads: int = 4
    feedforward: int = 128
    channels: int = 16
    positions: int = 100
    pred_rnn_layers: int = 2
    pred_hidden: int = 24
    normalize_type: str = "per_feature"
    exported: bool = False  # see `FastConformer`

    dropped = 0
    mean, deviation = 0.0, 1.0  # of normalized features

    @property
    def window(self):
        return SUBSAMPLING * self.frames

    @property
    def shift(self):
        return SUBSAMPLING * self.chunk

    @property
    def frames(self):
        return self.left + self.chunk + self.right

    @property
    def reduced(self):
        """Mel bins after three convolutions of stride 2."""
        return self.bins // SUBSAMPLING

    def metadata(self, vocabulary):
        """Return the metadata without that of the decoder; `vocabulary` counts the blank, NeMo's does not."""
        parts = {"left": self.left, "chunk": self.chunk, "right": self.right}
        return {
            "vocab_size": vocabulary - 1,
            "normalize_type": self.normalize_type,
            "subsampling_factor": SUBSAMPLING,
            "model_type": "EncDecRNNTBPEModel",
            "streaming_model_type": TYPE,
            "buffered_streaming": 1,
            **{f"{part}_encoder_frames": count for part, count in parts.items()},
            **{f"{part}_feature_frames": SUBSAMPLING * count for part, count in parts.items()},
            "version": "2",
            "model_author": "NeMo",
            "comment": "probe",
            "feat_dim": self.bins,
        }


PUBLISHED = {"hidden": 1024, "layers": 24, "heads": 8, "feedforward": 4096, "channels": 256, "positions": 5_000}
SIZES = {"small": {}, "600m": {**PUBLISHED, "pred_hidden": 640}}


def write_frames(graph, spec):
    """The graph of an encoder: windows (N, F, T) and their lengths → frames (N, D, T') and their lengths."""
    signal = graph.input("audio_signal", ["N", spec.bins, "T"])
    length = graph.input("length", ["N"], "int64")
    x, lengths = subsampling(graph, graph("Transpose", signal, perm=[0, 2, 1]), length, spec)
    total = size(graph, x, 1)
    x = graph("Mul", x, np.float32(spec.hidden**0.5))
    positions = position_table(graph, total, spec)
    padding, hidden_places = masks(graph, total, lengths, spec)
    for _ in range(spec.layers):
        x, *_ = layer(graph, spec, x, (None, None), (positions, padding, hidden_places))
    graph.output(graph("Transpose", x, perm=[0, 2, 1]), "outputs", ["N", spec.hidden, "T'"])
    graph.output(lengths, "encoded_lengths", ["N"], "int64")


def masks(graph, total, lengths, spec):
    """Return masks of frames (N, T') that are padding, and of frames (N, T', T') not to attend to."""
    places = graph("Range", np.int64(0), total, np.int64(1))
    first = graph("Mul", graph("Div", places, np.int64(spec.chunk)), np.int64(spec.chunk))  # of each frame's chunk
    apart = graph("Sub", graph("Unsqueeze", places, [0]), graph("Unsqueeze", first, [1]))
    near = graph("GreaterOrEqual", apart, np.int64(-spec.left))
    allowed = graph("And", near, graph("Less", apart, np.int64(spec.chunk + spec.right)))
    rows = graph("Expand", places, shape(graph, size(graph, lengths, 0), total))  # (N, total)
    valid = graph("Less", rows, graph("Unsqueeze", lengths, [-1]))
    square = graph("Tile", graph("Unsqueeze", valid, [1]), shape(graph, 1, total, 1))
    square = graph("And", square, graph("Transpose", square, perm=[0, 2, 1]))
    return graph("Not", valid), graph("Not", graph("And", square, graph("Unsqueeze", allowed, [0])))
