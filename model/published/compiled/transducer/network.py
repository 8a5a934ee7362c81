"""A transducer's decoder and joiner with packed weights, and their calls over rows of streams or hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.int8.memory import KeptArrays, aligned, offsets_of
from model.int8.vectors import ROW
from model.published.compiled.linears import Linear, LinearTable, Scratch
from model.published.compiled.transducer import step
from model.published.compiled.transducer.step import BEST_BYTES, Plan, Shapes, Tables, Work
from model.published.compiled.transducer.weights import TransducerWeights
from model.published.frame_joiner import Rows

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

LARGEST_CALL = 32  # rows


class CompiledTransducer:
    """The packed networks, shared by all searches."""

    def __init__(self, weights: TransducerWeights, linears: Sequence[Linear]) -> None:
        """`linears`: those of the weights, with or without scales, in the same order."""
        weights = weights.with_linears(tuple(linears))
        parts = weights.linears[:-1]
        width = weights.embedding.shape[1]
        decoded = weights.hidden or weights.prediction[-1].weight.shape[1]
        self.shapes = Shapes(
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
        self.plan = Plan(self.shapes, Tables(embedding, self._parts.address, self._scores.address))
        self.padded_symbols = int(weights.scores.weight.shape[1])  # columns of a row of scores
        self._offsets, self._work_bytes = self._work_offsets()

    @property
    def weight_bytes(self) -> int:
        """Size of the packed weights."""
        return self._arrays.nbytes + self._parts.weight_bytes + self._scores.weight_bytes

    def calls(self) -> CompiledCalls:
        """Return the calls with work space of their own; each thread needs its own."""
        return CompiledCalls(self)

    def work(self) -> tuple[Work, NDArray[np.uint8]]:
        """Return the addresses of new work space, and its memory."""
        memory = aligned(self._work_bytes)
        start = int(memory.ctypes.data)
        places: dict[str, Any] = {name: start + offset for name, offset in self._offsets.items()}
        for name in ("parts", "scores"):
            places[name] = Scratch(*(places.pop(f"{name}.{part}") for part in Scratch._fields))
        return Work(**places), memory

    def _work_offsets(self) -> tuple[dict[str, int], int]:
        shapes, row = self.shapes, self.padded_symbols * 4
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
            sizes |= {f"{name}.{part}": size for part, size in zip(Scratch._fields, table.scratch_bytes, strict=True)}
        return offsets_of(sizes)


class CompiledCalls:
    """`Calls` of compiled networks, over any number of rows; a row has the same bits in every batch."""

    rows = Rows()

    def __init__(self, network: CompiledTransducer) -> None:
        self._network, self._plan = network, network.plan
        self._work, self._memory = network.work()
        self._shapes = network.shapes

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

    def join(self, frames: Floats, history: Floats) -> Floats:
        """Return the scores (N, V) of all symbols, from results of `project` and `predict`, both (N, J)."""
        scores = np.empty((len(frames), self._network.padded_symbols), np.float32)
        for part in _parts(len(frames)):
            x, y = (np.ascontiguousarray(each[part]) for each in (frames, history))
            out = scores[part]
            step.join(self._plan, self._work, x.ctypes.data, y.ctypes.data, len(x), out.ctypes.data)
        return scores[:, : self._shapes.symbols]

    def best(self, frames: Floats, history: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        """Return the best symbol of each row, as `join` scores it, and its log-probability if it is `written` (V,)."""
        symbols, log_probs = np.empty(len(frames), np.int64), np.empty(len(frames), np.float32)
        for part in _parts(len(frames)):
            x, y = (np.ascontiguousarray(each[part]) for each in (frames, history))
            results = symbols[part].ctypes.data, log_probs[part].ctypes.data
            step.find_best(self._plan, self._work, x.ctypes.data, y.ctypes.data, len(x), written.ctypes.data, results)
        return symbols, log_probs


def _parts(rows: int) -> list[slice]:
    return [slice(first, min(first + LARGEST_CALL, rows)) for first in range(0, rows, LARGEST_CALL)]
