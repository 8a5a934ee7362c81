"""Transducers with random weights: the encoders of this package, two prediction networks and their joiners.

The zipformer's prediction network is stateless and reads the last `context_size` symbols, -1 before the first.
NeMo's is an LSTM; its input is one symbol, its two states belong to the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import fastconformer, parakeet, zipformer
from .graph import FLOAT

ROLES = ("encoder", "decoder", "joiner")
BLANK_SHARES = {"zipformer2-transducer": 0.85, "nemo-transducer": 0.65, "nemo-buffered-transducer": 0.65}


@dataclass(frozen=True, slots=True)
class Head:
    """Output of a joiner: size, index of the blank, and the weights of a frame and a sign for the blank."""

    vocabulary: int
    blank: int
    own: float
    gate: float


def write_zipformer2(graphs, spec, vocabulary):
    """The three graphs of a zipformer2-transducer: their metadata by role."""
    zipformer.write_frames(graphs["encoder"], spec)
    size = spec.joiner_dim
    if spec.exported:
        write_exported_stateless(graphs["decoder"], spec, vocabulary)
    else:
        write_stateless(graphs["decoder"], spec, vocabulary)
    joiner = graphs["joiner"]
    frame = joiner.input("encoder_out", ["N", size])
    history = joiner.input("decoder_out", ["N", size])
    head = Head(vocabulary, 0, own=8.0, gate=2.0)
    if spec.exported:
        logits = scored(joiner, joiner("Tanh", joiner("Add", frame, history)), size, vocabulary)
    else:
        logits = joined(joiner, (frame, size), (history, size), (frame, history), head)
    joiner.output(logits, "logit", ["N", vocabulary])
    return {
        "encoder": spec.metadata("streaming zipformer2"),
        "decoder": {"context_size": spec.context_size, "vocab_size": vocabulary},
        "joiner": {"joiner_dim": size},
    }


def write_stateless(graph, spec, vocabulary):
    """Symbols y (N, context) int64 → (N, joiner_dim): an embedding for each place of the context."""
    size, context = spec.joiner_dim, spec.context_size
    symbols = graph.input("y", ["N", context], "int64")
    known = graph("Cast", graph("GreaterOrEqual", symbols, np.int64(0)), to=FLOAT)
    embedded = graph("Gather", graph.weight(vocabulary, size, scale=1.0), graph("Max", symbols, np.int64(0)))
    embedded = graph("Mul", embedded, graph("Unsqueeze", known, [2]))  # (N, context, D)
    placed = graph("Mul", embedded, graph.weight(context, size, scale=1.0))
    output = graph.linear(
        graph("Tanh", graph("ReduceSum", placed, [1], keepdims=0)), size, size, scale=1.5 * size**-0.5
    )
    graph.output(output, "decoder_out", ["N", size])


def write_exported_stateless(graph, spec, vocabulary):
    """Write icefall's decoder: a convolution of the embeddings in groups of four channels, ReLU, and a projection."""
    size, context, group = spec.joiner_dim, spec.context_size, 4
    symbols = graph.input("y", ["N", context], "int64")
    known = graph("Unsqueeze", graph("Cast", graph("GreaterOrEqual", symbols, np.int64(0)), to=FLOAT), [2])
    embedded = graph("Gather", graph.weight(vocabulary, size, scale=1.0), graph("Max", symbols, np.int64(0)))
    embedded = graph("Transpose", graph("Mul", embedded, known), perm=[0, 2, 1])
    kernel = graph.weight(size, group, context, scale=(group * context) ** -0.5)
    mixed = graph("Conv", embedded, kernel, kernel_shape=[context], group=size // group)
    mixed = graph("Squeeze", graph("Relu", graph("Transpose", mixed, perm=[0, 2, 1])), [1])
    graph.output(scored(graph, mixed, size, size, "projected", scale=0.7), "decoder_out", ["N", size])


def scored(graph, x, size, results, name="bias", *, scale=3):
    """Apply a Linear to (N, size), as it is exported for matrices: a Gemm with transposed weights."""
    weight = graph.weight(results, size, scale=scale * size**-0.5)
    return graph("Gemm", x, weight, graph.constant(np.zeros(results), name), transB=1)


def joined(graph, frame, history, projected, head):
    """Scores (..., V) of a frame and a history, pairs of value and size; `projected` are both at the same size.

    Tokens have log-probabilities among themselves. The blank follows a feature of the frame, which no history
    can suppress, and the sign of another feature of the frame times that of a feature of the history: a symbol may flip
    it, so that bursts end. The calibration sets "bias" and "blank_bias", and "beat" and "beat_bias" so that both signs
    are as frequent.
    """
    size, vocabulary = frame[1], head.vocabulary
    activity = graph("Tanh", graph("Add", *projected))
    logits = graph.linear(activity, size, vocabulary, scale=4 * size**-0.5)
    tokens = graph("LogSoftmax", graph("Add", logits, graph.constant(np.zeros(vocabulary), "bias")), axis=-1)
    own = graph.linear(frame[0], size, 1, scale=head.own * size**-0.5)
    beat = graph("MatMul", frame[0], graph.constant(graph.random.standard_normal((size, 1)), "beat"))
    beat = graph("Tanh", graph("Add", beat, graph.constant(np.zeros(1), "beat_bias")))
    turn = graph("Tanh", graph("Mul", graph.slice(history[0], 0, 1, -1), np.float32(3)))
    gate = graph("Mul", graph("Mul", beat, turn), np.float32(head.gate))
    only_blank = np.eye(1, vocabulary, head.blank)[0]
    score = graph.total(own, gate, graph.constant(np.zeros(1), "blank_bias"))
    return graph("Add", graph("Mul", tokens, 1 - only_blank), graph("Mul", score, only_blank))


def write_buffered(graphs, spec, vocabulary):
    """The three graphs of a nemo-buffered-transducer: their metadata by role."""
    return write_nemo(graphs, spec, vocabulary, parakeet) | {"decoder": {"streaming_model_type": parakeet.TYPE}}


def write_nemo(graphs, spec, vocabulary, encoder=fastconformer):
    """The three graphs of a nemo-transducer: their metadata by role."""
    encoder.write_frames(graphs["encoder"], spec)
    size, inner = spec.hidden, spec.pred_hidden
    write_lstm(graphs["decoder"], spec, vocabulary)
    joiner = graphs["joiner"]
    frames = joiner("Transpose", joiner.input("encoder_outputs", ["N", size, "T"]), perm=[0, 2, 1])
    history = joiner("Transpose", joiner.input("decoder_outputs", ["N", inner, "U"]), perm=[0, 2, 1])
    frames, history = joiner("Unsqueeze", frames, [2]), joiner("Unsqueeze", history, [1])  # (N, T, 1, D), (N, 1, U, H)
    projected = (
        joiner.linear(frames, size, size, scale=1.5 * size**-0.5),
        joiner.linear(history, inner, size, scale=2 * inner**-0.5),
    )
    head = Head(vocabulary, vocabulary - 1, own=3.5, gate=6.0)  # a frame may have ten symbols: the sign ends them
    if spec.exported:
        projected = [joiner("Add", each, joiner.weight(size, scale=0.1)) for each in projected]
        active = joiner("Relu", joiner("Add", *projected))
        scores = joiner.linear(active, size, vocabulary, scale=3 * size**-0.5)
        scores = joiner("Add", joiner.constant(np.zeros(vocabulary), "bias"), scores)
        logits = joiner("LogSoftmax", scores, axis=-1)
    else:
        logits = joined(joiner, (frames, size), (history, inner), projected, head)
    joiner.output(logits, "outputs", ["N", "T", "U", vocabulary])
    layers = {"pred_rnn_layers": spec.pred_rnn_layers, "pred_hidden": inner}
    return {"encoder": spec.metadata(vocabulary) | layers, "decoder": {}, "joiner": {}}


def write_lstm(graph, spec, vocabulary):
    """Map a symbol (N, 1) int32 and two states (layers, N, H) to the history (N, H, 1) and the next states."""
    size, layers = spec.pred_hidden, spec.pred_rnn_layers
    symbol = graph.input("targets", ["N", 1], "int32")
    count = graph.input("target_length", ["N"], "int32")
    given = [graph.input(name, [layers, "N", size]) for name in ("states.1", "onnx::LSTM_3")]
    table = graph.weight(vocabulary, size, scale=2.0)
    graph.initializers[table][-1] = 0  # blank means no symbol
    x = graph("Transpose", graph("Gather", table, symbol), perm=[1, 0, 2])  # (1, N, H)
    following = [], []
    for index in range(layers):
        before = [graph.slice(state, index, index + 1, 0) for state in given]
        inward, backward = (graph.weight(1, 4 * size, size, scale=2 * size**-0.5) for _ in range(2))
        bias = graph.weight(1, 8 * size, scale=0.1) if spec.exported else np.zeros((1, 8 * size), np.float32)
        sequence, *after = graph("LSTM", x, inward, backward, bias, "", *before, outputs=3, hidden_size=size)
        x = graph("Squeeze", sequence, [1])
        if index == layers - 1 and not spec.exported:
            after[0] = with_turn(graph, after[0], before[0])
            x = after[0]
        for states, value in zip(following, after, strict=True):
            states.append(value)
    graph.output(graph("Transpose", x, perm=[1, 2, 0]), "outputs", ["N", size, 1])
    graph.output(count, "prednet_lengths", ["N"], "int32")
    for states, name in zip(following, ("states", "162"), strict=True):
        graph.output(graph("Concat", *states, axis=0), name, [layers, "N", size])


def with_turn(graph, after, before):
    """Return the state (1, N, H) with a sign in its first column that each symbol flips."""
    turned = graph(
        "Where", graph("Greater", graph.slice(before, 0, 1, 2), np.float32(0)), np.float32(-0.8), np.float32(0.8)
    )
    return graph("Concat", turned, graph.slice(after, 1, np.iinfo(np.int64).max, 2), axis=2)


def histories(session, blank, vocabulary, count=200, seed=0, *, new=True):
    """Return outputs (count, D) of a prediction network: after random symbols, of an LSTM those of new streams.

    With `new` false, those of an LSTM are after random symbols and states, too.
    """
    inputs, dice = session.get_inputs(), np.random.default_rng(seed)
    if len(inputs) == 1:
        symbols = dice.integers(0, vocabulary, (count, inputs[0].shape[1]))
        return session.run(None, {inputs[0].name: symbols})[0]
    layers, _, size = inputs[2].shape
    symbols, states = np.full((count, 1), blank, np.int32), np.zeros((2, layers, count, size), np.float32)
    if not new:
        symbols = dice.integers(0, blank, (count, 1)).astype(np.int32)
        states = dice.uniform(-0.7, 0.7, states.shape).astype(np.float32)
    values = [symbols, np.ones(count, np.int32), *states]
    return session.run(None, {entry.name: value for entry, value in zip(inputs, values, strict=True)})[0][:, :, 0]


def scores(joiner, frames, history, seed=0):
    """Return logits (T, V) of frames (T, D), each with a history drawn from (M, H)."""
    chosen = history[np.random.default_rng(seed).integers(0, len(history), len(frames))]
    if len(joiner.get_inputs()[0].shape) == 3:
        frames, chosen = frames[:, :, None], chosen[:, :, None]
    names = [entry.name for entry in joiner.get_inputs()]
    logits = joiner.run(None, dict(zip(names, (frames, chosen), strict=True)))[0]
    return logits.reshape(len(frames), -1)
