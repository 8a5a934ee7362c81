"""Voice activity detection: the Silero network in ONNX Runtime, with slots for many streams.

The graph is silero-vad 6.2.3's `silero_vad_16k_op15.onnx` (MIT License), which ships in `model/weights`. It takes 576
samples, the last 64 of the previous step and 512 new ones, and the state of its LSTM. Thresholds and endpoint
rules belong to the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.config import SHIPPED_WEIGHTS
from model.errors import CheckpointError, PublishedModelError
from model.published.metadata import Graph
from model.published.states import SlotStates, StateTensor

SHIPPED = SHIPPED_WEIGHTS / "silero-vad-6.onnx"
CONTEXT = 64  # samples of the previous step that a step reads again
STATES = (StateTensor((2, 128), np.dtype(np.float32), axis=1), StateTensor((CONTEXT,), np.dtype(np.float32)))


class SileroVad:
    """Voice activity model: probability of speech in each 32 ms of 16-bit audio at 16 kHz."""

    sample_rate = 16_000
    step_samples = 512

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @classmethod
    def load(cls, path: Path = SHIPPED) -> SileroVad:
        """Read the graph. Raises: CheckpointError."""
        try:
            return cls(Graph.load(path))
        except PublishedModelError as error:
            raise CheckpointError(f"voice activity detection: {error}") from error

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> VadSlots:
        """Return the network with slots for `capacity` streams, in batches of at most `largest` rows.

        `tile_rows` has no effect: rows are bit-identical in every batch (tests/model/test_vad.py).
        """
        del tile_rows
        return VadSlots(self._graph, self.step_samples, self.sample_rate, capacity=capacity, largest=largest)


class VadSlots:
    """The network with slots for its streams; implements `batching.SlotModel`."""

    def __init__(self, graph: Graph, step_samples: int, sample_rate: int, *, capacity: int, largest: int) -> None:
        rows = min(largest, capacity)
        self.capacity = capacity
        self.inputs: NDArray[Any] = np.zeros((rows, step_samples), np.int16)
        self._session = graph.session
        self._rate = np.array(sample_rate, np.int64)
        self._audio = np.zeros((rows, CONTEXT + step_samples), np.float32)
        self._states = SlotStates(STATES, capacity=capacity)
        self._batch = self._states.batched(rows)
        self.state_bytes = self._states.state_bytes
        self.reset, self.export, self.restore = self._states.reset, self._states.export, self._states.restore

    def run(self, slots: Sequence[int]) -> NDArray[np.float32]:
        """Step these slots on the first rows of `inputs`. Returns: the probability of speech of each, (B, 1)."""
        rows, members = len(slots), np.asarray(slots, np.int64)
        self._batch.gather(members)
        state, context = self._batch.before(rows)
        audio = self._audio[:rows]
        audio[:, :CONTEXT] = context
        np.divide(self.inputs[:rows], 32_768, out=audio[:, CONTEXT:], dtype=np.float32)
        found: list[NDArray[np.float32]] = self._session.run(None, {"input": audio, "state": state, "sr": self._rate})
        probabilities, after = found
        next_state, next_context = self._batch.after(rows)
        next_state[:], next_context[:] = after, audio[:, -CONTEXT:]
        self._batch.scatter(members, rows)
        return probabilities
