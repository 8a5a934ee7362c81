"""Prediction network and joiner of a transducer, each a call over rows of any streams.

A stateless prediction network reads the last symbols (zipformer2), a recurrent one its own state (NeMo): both are the
context of a hypothesis. Each frame yields at most one symbol (zipformer2) or up to ten (NeMo).
Source: Graves 2012, and the rules of sherpa-onnx's greedy searches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.ctc.tokens import Tokens
from model.errors import PublishedModelError
from model.published.graphs.metadata import Graph
from model.published.transducer.frame_joiner import COMPARED_ROWS, Rows, joiner_rows

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
Contexts = NDArray[Any]

NEMO_SYMBOLS = 10  # most symbols of a frame, as in sherpa-onnx


class TransducerNetworks(Protocol):
    """Prediction network and joiner of one model."""

    @property
    def tokens(self) -> Tokens:
        """The symbols."""

    @property
    def rows(self) -> Rows:
        """How the outputs of a row depend on the others."""

    @property
    def symbols_per_frame(self) -> int:
        """Maximum number of symbols per frame."""

    @property
    def start(self) -> tuple[Contexts, Floats]:
        """Context of a new stream, (1, …), and the prediction network's output after it, (1, D')."""

    def advance(self, contexts: Contexts, symbols: Indices) -> tuple[Contexts, Floats]:
        """Append a symbol to each of R contexts, (R, …) and (R,). Returns: new contexts, outputs (R, D')."""

    def project(self, encoded: Floats) -> Floats:
        """Return what the joiner takes of an encoder's frames: (R, T, D) to (R, T, J)."""

    def join(self, frames: Floats, outputs: Floats) -> Floats:
        """Join projected frames (N, J) with outputs of the prediction network (N, D'). Returns: logits (N, V)."""

    def best(self, frames: Floats, outputs: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        """Return the best symbol of each row (N,), and its log-probability if it is one of those `written` (V,)."""


def written(tokens: Tokens) -> NDArray[np.bool_]:
    """Return whether each symbol (V,) is appended to a context: all but the blank and a stateless model's `<unk>`."""
    recurrent = tokens.blank != 0
    return np.array([at != tokens.blank and (recurrent or name != "<unk>") for at, name in enumerate(tokens.symbols)])


def best_of(logits: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
    """Return the best symbol of each row of logits (N, V), and its log-probability if it is `written`, else 0."""
    symbols = logits.argmax(axis=1)
    return symbols, log_probs_of(logits, symbols, written)


def log_probs_of(logits: Floats, symbols: Indices, written: NDArray[np.bool_]) -> Floats:
    """Return the log-probability of a symbol of each row, (N, V) and (N,) -> (N,), 0 for those not `written`."""
    wanted, log_probs = np.flatnonzero(written[symbols]), np.zeros(len(symbols), np.float32)
    scores = logits[wanted]
    shifted = scores - scores.max(axis=1, keepdims=True)
    sums = np.log(np.exp(shifted).sum(axis=1))
    log_probs[wanted] = shifted[np.arange(len(wanted)), symbols[wanted]] - sums
    return log_probs


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Stateless:
    """Networks of a zipformer2 transducer. A context is the last symbols (context,), -1 before the first."""

    decoder: Graph
    joiner: Graph
    context: int
    tokens: Tokens
    rows: Rows
    symbols_per_frame: int = 1
    start: tuple[Contexts, Floats] = field(init=False, repr=False)

    @classmethod
    def of(cls, decoder: Graph, joiner: Graph, tokens: Tokens, width: int) -> Stateless:
        """`width`: size of the encoder's frames. Raises: PublishedModelError."""
        context = decoder.number("context_size")
        joiner.number("joiner_dim")  # required by sherpa-onnx
        decoder.check_inputs([("tensor(int64)", (None, context))])
        decoder.need_outputs(1)
        if tokens.blank != 0:
            raise PublishedModelError(f"the blank of a zipformer2 transducer must be symbol 0, not {tokens.blank}")
        decoded = decoder.try_out("the symbols of a new stream", np.full((1, context), tokens.blank, np.int64))[0]
        _check_joiner(joiner, (1, width), decoded.shape, len(tokens.symbols))
        dice = np.random.default_rng(1)
        symbols = dice.integers(0, len(tokens.symbols), (max(COMPARED_ROWS), context))
        rows = Rows.of(decoder, (symbols, 0)).joined(joiner_rows(joiner, (width,), decoded.shape[1:]))
        return cls(decoder, joiner, context, tokens, rows)

    def __post_init__(self) -> None:
        """Compute what a new stream starts with."""
        fresh = np.array([[-1] * (self.context - 1) + [self.tokens.blank]], np.int64)
        object.__setattr__(self, "start", (fresh, self._decode(fresh)))

    def advance(self, contexts: Contexts, symbols: Indices) -> tuple[Contexts, Floats]:
        """See `TransducerNetworks`."""
        contexts = np.concatenate([contexts[:, 1:], symbols[:, np.newaxis]], axis=1)
        return contexts, self._decode(contexts)

    def project(self, encoded: Floats) -> Floats:
        """Return the frames themselves."""
        return np.ascontiguousarray(encoded)

    def join(self, frames: Floats, outputs: Floats) -> Floats:
        """See `TransducerNetworks`."""
        return _run(self.joiner, self.rows.padded(frames), self.rows.padded(outputs))[: len(frames)]

    def best(self, frames: Floats, outputs: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        """See `TransducerNetworks`."""
        return best_of(self.join(frames, outputs), written)

    def _decode(self, contexts: Contexts) -> Floats:
        return _run(self.decoder, self.rows.padded(contexts))[: len(contexts)]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Recurrent:
    """Networks of a NeMo transducer. A context is both states of the LSTM, (2, layers, hidden)."""

    decoder: Graph
    joiner: Graph
    layers: int
    hidden: int
    tokens: Tokens
    rows: Rows
    symbols_per_frame: int = NEMO_SYMBOLS
    start: tuple[Contexts, Floats] = field(init=False, repr=False)

    @classmethod
    def of(cls, sizes: tuple[int, int], decoder: Graph, joiner: Graph, tokens: Tokens, width: int) -> Recurrent:
        """`sizes`: layers and width of the LSTM; `width`: size of the encoder's frames. Raises: PublishedModelError."""
        layers, hidden = sizes
        state = ("tensor(float)", (layers, None, hidden))
        decoder.check_inputs([("tensor(int32)", (None, None)), ("tensor(int32)", (None,)), state, state])
        decoder.need_outputs(4)
        if tokens.blank != len(tokens.symbols) - 1:
            raise PublishedModelError(f"the blank of a NeMo transducer must be its last symbol, not {tokens.blank}")
        zeros = np.zeros((layers, 1, hidden), np.float32)
        blank, length = np.full((1, 1), tokens.blank, np.int32), np.ones(1, np.int32)
        output = decoder.try_out("the blank of a new stream", blank, length, zeros, zeros)[0]
        _check_joiner(joiner, (1, width, 1), output.shape, len(tokens.symbols))
        dice, most = np.random.default_rng(1), max(COMPARED_ROWS)
        symbols = dice.integers(0, tokens.blank, (most, 1)).astype(np.int32)
        states = dice.standard_normal((layers, most, hidden)).astype(np.float32)
        decoder_rows = Rows.of(decoder, (symbols, 0), (np.ones(most, np.int32), 0), (states, 1), (states, 1))
        rows = decoder_rows.joined(joiner_rows(joiner, (width, 1), output.shape[1:]))
        return cls(decoder, joiner, layers, hidden, tokens, rows)

    def __post_init__(self) -> None:
        """Compute what a new stream starts with."""
        zeros = np.zeros((1, 2, self.layers, self.hidden), np.float32)
        object.__setattr__(self, "start", self.advance(zeros, np.array([self.tokens.blank])))

    def advance(self, contexts: Contexts, symbols: Indices) -> tuple[Contexts, Floats]:
        """See `TransducerNetworks`."""
        count = len(symbols)
        targets = self.rows.padded(symbols.astype(np.int32))[:, np.newaxis]
        by_layer = np.ascontiguousarray(self.rows.padded(contexts).transpose(1, 2, 0, 3))  # (2, layers, R, hidden)
        lengths = np.ones(len(targets), np.int32)
        output, _, *after = _run_all(self.decoder, targets, lengths, by_layer[0], by_layer[1])
        return np.stack(after).transpose(2, 0, 1, 3)[:count], output.reshape(len(targets), -1)[:count]

    def join(self, frames: Floats, outputs: Floats) -> Floats:
        """See `TransducerNetworks`."""
        padded = self.rows.padded(frames)
        joined = _run(self.joiner, padded[..., np.newaxis], self.rows.padded(outputs)[..., np.newaxis])
        return joined.reshape(len(padded), -1)[: len(frames)]

    def project(self, encoded: Floats) -> Floats:
        """Return the frames themselves."""
        return np.ascontiguousarray(encoded)

    def best(self, frames: Floats, outputs: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        """See `TransducerNetworks`."""
        return best_of(self.join(frames, outputs), written)


def _check_joiner(joiner: Graph, encoded: tuple[int, ...], decoded: tuple[int, ...], symbols: int) -> None:
    """Run a joiner on one frame of zeros of these shapes. Raises: PublishedModelError."""
    joiner.check_inputs([("tensor(float)", (None, *shape[1:])) for shape in (encoded, decoded)])
    logits = joiner.try_out("one frame", np.zeros(encoded, np.float32), np.zeros(decoded, np.float32))[0]
    if logits.shape[-1] != symbols:
        raise PublishedModelError(
            f"{joiner.path.name} has {logits.shape[-1]} outputs, but tokens.txt has {symbols} symbols"
        )


def _run(graph: Graph, *inputs: NDArray[Any]) -> Floats:
    return _run_all(graph, *inputs)[0]


def _run_all(graph: Graph, *inputs: NDArray[Any]) -> list[Floats]:
    feeds = {declared.name: array for declared, array in zip(graph.inputs, inputs, strict=True)}
    outputs: list[Floats] = graph.session.run(None, feeds)
    return outputs
