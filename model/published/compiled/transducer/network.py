"""A transducer's decoder and joiner with packed weights, and their calls over rows of streams or hypotheses."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.int8.vectors import ROW
from model.machine.memory import KeptArrays, aligned, offsets_of
from model.published.compiled.linears import PARTS, LinearTable, Scratch
from model.published.compiled.transducer import step
from model.published.compiled.transducer.step import BEST_BYTES, Plan, Shapes, Tables, Work
from model.published.compiled.transducer.weights import TransducerWeights
from model.published.transducer.frame_joiner import Rows
from model.published.transducer.networks import Contexts, Floats, Indices, TransducerNetworks

LARGEST_CALL = 32  # rows


class CompiledNetworks:
    """Networks in another form than the graphs that they stand for; implements `TransducerNetworks` by structure.

    Contexts are those of the graphs; outputs of the prediction network are what the joiner adds to a frame. Any number
    of rows, in any thread: a row has the same bits in every batch.
    """

    rows = Rows()

    def __init__(self, weights: TransducerWeights, published: TransducerNetworks) -> None:
        """`weights`: those of the networks `published`; linear layers with a scale are computed in integers."""
        self.tokens, self.symbols_per_frame = published.tokens, published.symbols_per_frame
        parts = weights.linears[:-1]
        width = weights.embedding.shape[1]
        decoded = weights.hidden or weights.prediction[-1].weight.shape[1]
        self._shapes = Shapes(
            embedding=width,
            context=weights.context,
            layers=weights.layers,
            hidden=weights.hidden,
            decoded=decoded,
            frame=weights.joined if weights.frames is None else weights.frames.weight.shape[0],
            joined=weights.joined,
            symbols=weights.symbols,
            history=-1 if weights.history is None else len(weights.prediction),
            frames=-1 if weights.frames is None else len(parts) - 1,
            tanh=int(weights.activation == "Tanh"),
        )
        self._arrays = KeptArrays()  # their addresses are in the plan
        self._parts, self._scores = (
            LinearTable(parts, rows=LARGEST_CALL),
            LinearTable([weights.scores], rows=LARGEST_CALL),
        )
        embedding = self._arrays.keep(np.asarray(weights.embedding, np.float32))
        self._plan = Plan(self._shapes, Tables(embedding, self._parts.address, self._scores.address))
        self._padded_symbols = int(weights.scores.weight.shape[1])  # columns of a row of scores
        self._offsets, self._work_bytes = self._work_offsets()
        self._own = threading.local()  # work space of each thread
        context, _ = published.start
        self.start: tuple[Contexts, Floats] = (
            (context, self.predict(context))
            if weights.context
            else self.advance(np.zeros_like(context), np.array([self.tokens.blank]))
        )

    def advance(self, contexts: Contexts, symbols: Indices) -> tuple[Contexts, Floats]:
        """See `TransducerNetworks`."""
        if not self._shapes.context:
            contexts = np.array(contexts, np.float32, order="C")  # a copy, which the call changes
            return contexts, self.predict(symbols, contexts)
        contexts = np.concatenate([contexts[:, 1:], symbols[:, np.newaxis]], axis=1)
        return contexts, self.predict(contexts)

    def project(self, encoded: Floats) -> Floats:
        """Return what the joiner adds of an encoder's frames (R, T, D): (R, T, J)."""
        if self._shapes.frames < 0:
            return np.ascontiguousarray(encoded)
        frames = np.ascontiguousarray(encoded).reshape(-1, encoded.shape[-1])
        projected = np.empty((len(frames), self._shapes.joined), np.float32)
        for part in _parts(len(frames)):
            x, out = frames[part], projected[part]
            step.project(self._plan, self._work, x.ctypes.data, len(x), out.ctypes.data)
        return projected.reshape(*encoded.shape[:-1], -1)

    def predict(self, symbols: Indices, states: Floats | None = None, /) -> Floats:
        """Return what the joiner adds of the decoder's output after symbols: (R, J).

        `symbols`: (R,) for an LSTM, whose contiguous `states` (R, 2, layers, H) are replaced; (R, context) else.
        """
        symbols = np.ascontiguousarray(symbols, np.int64)
        outputs = np.empty((len(symbols), self._shapes.joined), np.float32)
        for part in _parts(len(symbols)):
            chosen, predicted = symbols[part], outputs[part]
            at = 0 if states is None else states[part].ctypes.data
            step.predict(self._plan, self._work, chosen.ctypes.data, at, len(chosen), predicted.ctypes.data)
        return outputs

    def join(self, frames: Floats, outputs: Floats) -> Floats:
        """Return the scores (N, V) of all symbols, from results of `project` and `predict`, both (N, J)."""
        scores = np.empty((len(frames), self._padded_symbols), np.float32)
        for part in _parts(len(frames)):
            x, y = (np.ascontiguousarray(rows[part]) for rows in (frames, outputs))
            out = scores[part]
            step.join(self._plan, self._work, x.ctypes.data, y.ctypes.data, len(x), out.ctypes.data)
        return scores[:, : self._shapes.symbols]

    def best(self, frames: Floats, outputs: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        """Return the best symbol of each row, as `join` scores it, and its log-probability if it is `written` (V,)."""
        symbols, log_probs = np.empty(len(frames), np.int64), np.empty(len(frames), np.float32)
        for part in _parts(len(frames)):
            x, y = (np.ascontiguousarray(rows[part]) for rows in (frames, outputs))
            results = symbols[part].ctypes.data, log_probs[part].ctypes.data
            step.find_best(self._plan, self._work, x.ctypes.data, y.ctypes.data, len(x), written.ctypes.data, results)
        return symbols, log_probs

    @property
    def _work(self) -> Work:
        """Addresses of the thread's work space."""
        if not hasattr(self._own, "work"):
            self._own.memory = aligned(self._work_bytes)
            start = int(self._own.memory.ctypes.data)
            places: dict[str, Any] = {name: start + offset for name, offset in self._offsets.items()}
            for name in ("parts", "scores"):
                places[name] = Scratch.taken_from(places, f"{name}.")
            self._own.work = Work(**places)
        work: Work = self._own.work
        return work

    def _work_offsets(self) -> tuple[dict[str, int], int]:
        shapes, row = self._shapes, self._padded_symbols * 4
        sizes = {
            "embedded": LARGEST_CALL * max(1, shapes.context) * shapes.embedding * 4,
            "gates": LARGEST_CALL * 4 * shapes.hidden * 4,
            "decoded": LARGEST_CALL * shapes.decoded * 4,
            "joined": LARGEST_CALL * shapes.joined * 4,
            "best": BEST_BYTES,
            "row": row,
            "spare": row + ROW,
        }
        for name, table in (("parts", self._parts), ("scores", self._scores)):
            sizes |= {f"{name}.{part}": size for part, size in zip(PARTS, table.scratch_bytes, strict=True)}
        return offsets_of(sizes)


def _parts(rows: int) -> list[slice]:
    return [slice(first, min(first + LARGEST_CALL, rows)) for first in range(0, rows, LARGEST_CALL)]
