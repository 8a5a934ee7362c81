"""Greedy search of transducers, batched over streams; the symbols written so far are part of a stream's state.

A stateless decoder reads the last symbols (zipformer2), a recurrent one its own state (NeMo). Each frame yields at most
one symbol (zipformer2) or up to ten (NeMo), each with its log-probability.
Source: Graves 2012, and the rules of sherpa-onnx's greedy searches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.ctc.tokens import Tokens
from model.errors import PublishedModelError
from model.published.frame_joiner import COMPARED_ROWS, FrameJoiner, Rows, joiner_rows
from model.published.metadata import Graph

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

NONE = -1.0  # no symbol
NEMO_SYMBOLS = 10  # most symbols of a frame, as in sherpa-onnx


class TransducerSearch(Protocol):
    """Search that turns encoder frames of the streams in slots into symbols."""

    @property
    def symbols_per_frame(self) -> int:
        """Maximum number of symbols per frame."""

    @property
    def state_bytes(self) -> int:
        """Size of a slot's state in bytes."""

    def search(self, slots: Indices, encoded: Floats) -> Floats:
        """Search the frames (R, T, D). Returns: (R, T, symbols_per_frame, 2): symbol or `NONE`, log-probability."""

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""

    def export(self, slot: int) -> bytes:
        """Return a copy of a slot's state."""

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite a slot's state."""


@dataclass(frozen=True, slots=True)
class Stateless:
    """Decoder and joiner of a zipformer2 transducer."""

    decoder: Graph
    joiner: Graph
    context: int
    tokens: Tokens
    rows: Rows

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

    def over(self, capacity: int) -> StatelessSearch:
        """Return the search with this many slots."""
        return StatelessSearch(self, capacity)


class StatelessSearch:
    """Search with at most one symbol per frame; a slot holds the last symbols, -1 before the first."""

    symbols_per_frame = 1

    def __init__(self, graphs: Stateless, capacity: int) -> None:
        self._graphs = graphs
        self._fresh = np.array([-1] * (graphs.context - 1) + [graphs.tokens.blank], np.int64)
        self._history = np.tile(self._fresh, (capacity, 1))
        names = graphs.tokens.symbols
        self._written = np.array([at != graphs.tokens.blank and name != "<unk>" for at, name in enumerate(names)])

    @property
    def state_bytes(self) -> int:
        """Size of a slot's state in bytes."""
        return self._fresh.nbytes

    def search(self, slots: Indices, encoded: Floats) -> Floats:
        """See `TransducerSearch`."""
        history = self._history[slots]
        found = np.full((*encoded.shape[:2], 1, 2), NONE, np.float32)
        decoded = self._decode(history)
        joiner = FrameJoiner(self._join, self._graphs.rows, encoded, self._written)
        while (first := joiner.next_symbols(decoded)) is not None:
            if not len(first.rows):
                continue
            found[first.rows, first.frames, 0, 0] = first.symbols
            found[first.rows, first.frames, 0, 1] = first.log_probs
            joiner.after[first.rows] += 1
            history[first.rows] = np.concatenate([history[first.rows, 1:], first.symbols[:, np.newaxis]], axis=1)
            decoded[first.rows] = self._decode(history[first.rows])
        self._history[slots] = history
        return found

    def _join(self, frames: Floats, history: Floats) -> Floats:
        return _run(self._graphs.joiner, frames, history)

    def _decode(self, history: Indices) -> Floats:
        """Return the decoder's outputs (R, D) after the last symbols (R, context)."""
        return _run(self._graphs.decoder, self._graphs.rows.padded(history))[: len(history)]

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""
        self._history[slot] = self._fresh

    def export(self, slot: int) -> bytes:
        """Return a copy of a slot's state."""
        return bytes(self._history[slot].tobytes())

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite a slot's state."""
        self._history[slot] = np.frombuffer(state, np.int64)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Decoder and joiner of a NeMo transducer. Both states are (layers, B, hidden)."""

    decoder: Graph
    joiner: Graph
    layers: int
    hidden: int
    width: int  # of the decoder's output
    blank: int
    rows: Rows

    @classmethod
    def of(cls, encoder: Graph, decoder: Graph, joiner: Graph, tokens: Tokens, width: int) -> Recurrent:
        """`width`: size of the encoder's frames. Raises: PublishedModelError."""
        layers, hidden = encoder.number("pred_rnn_layers"), encoder.number("pred_hidden")
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
        return cls(decoder, joiner, layers, hidden, output.shape[1], tokens.blank, rows)

    def over(self, capacity: int) -> RecurrentSearch:
        """Return the search with this many slots."""
        return RecurrentSearch(self, capacity)


class RecurrentSearch:
    """Search with up to ten symbols per frame; a slot holds both states of the decoder and its output."""

    symbols_per_frame = NEMO_SYMBOLS

    def __init__(self, graphs: Recurrent, capacity: int) -> None:
        self._graphs = graphs
        self._written = np.arange(graphs.blank + 1) != graphs.blank  # the blank is the last symbol
        shape = (graphs.layers, graphs.hidden)
        self._states = np.zeros((capacity, 2, *shape), np.float32)
        self._outputs = np.zeros((capacity, graphs.width), np.float32)
        zeros = np.zeros((1, 2, *shape), np.float32)
        output, states = self._decode(np.array([graphs.blank]), zeros)
        self._fresh = states[0], output[0]
        for slot in range(capacity):
            self.reset(slot)

    @property
    def state_bytes(self) -> int:
        """Size of a slot's state in bytes."""
        return int(self._states[0].nbytes + self._outputs[0].nbytes)

    def search(self, slots: Indices, encoded: Floats) -> Floats:
        """See `TransducerSearch`."""
        states, outputs = self._states[slots], self._outputs[slots]
        found = np.full((*encoded.shape[:2], NEMO_SYMBOLS, 2), NONE, np.float32)
        counts = np.zeros(encoded.shape[:2], np.int64)  # symbols of each frame
        joiner = FrameJoiner(self._join, self._graphs.rows, encoded, self._written)
        while (first := joiner.next_symbols(outputs)) is not None:
            if not len(first.rows):
                continue
            places = counts[first.rows, first.frames]
            found[first.rows, first.frames, places, 0] = first.symbols
            found[first.rows, first.frames, places, 1] = first.log_probs
            counts[first.rows, first.frames] += 1
            joiner.after[first.rows] += places + 1 == NEMO_SYMBOLS  # else the frame may have another symbol
            outputs[first.rows], states[first.rows] = self._decode(first.symbols, states[first.rows])
        self._states[slots], self._outputs[slots] = states, outputs
        return found

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""
        self._states[slot], self._outputs[slot] = self._fresh

    def export(self, slot: int) -> bytes:
        """Return a copy of a slot's state."""
        return bytes(self._states[slot].tobytes() + self._outputs[slot].tobytes())

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite a slot's state."""
        size = self._states[slot].nbytes
        self._states[slot] = np.frombuffer(state[:size], np.float32).reshape(self._states[slot].shape)
        self._outputs[slot] = np.frombuffer(state[size:], np.float32)

    def _join(self, frames: Floats, history: Floats) -> Floats:
        joined = _run(self._graphs.joiner, frames[..., np.newaxis], history[..., np.newaxis])
        return joined.reshape(len(frames), -1)

    def _decode(self, symbols: Indices, states: Floats) -> tuple[Floats, Floats]:
        """Advance the decoder of R streams by a symbol each, states (R, 2, layers, hidden).

        Returns: outputs (R, D), next states.
        """
        count = len(symbols)
        targets = self._graphs.rows.padded(symbols.astype(np.int32))[:, np.newaxis]
        padded = self._graphs.rows.padded(states)
        by_layer = np.ascontiguousarray(padded.transpose(1, 2, 0, 3))  # (2, layers, R, hidden)
        lengths = np.ones(len(targets), np.int32)
        output, _, *after = _run_all(self._graphs.decoder, targets, lengths, by_layer[0], by_layer[1])
        return output.reshape(len(targets), -1)[:count], np.stack(after).transpose(2, 0, 1, 3)[:count]


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
    found: list[Floats] = graph.session.run(None, feeds)
    return found
