"""A published model as a `batching.SlotModel`: samples in, log-probs or the frames of a transducer out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.prompts import Prompts
from model.published.compiled.slots import CompiledSlots
from model.published.features import Windows
from model.published.stepping import GraphSlots

Outputs = NDArray[np.float32]


class PublishedSlots:
    """Feature windows and graph of a model's streams.

    Rows without a complete window are not run: they return frames of zeros, which their decoders skip.
    """

    def __init__(
        self,
        windows: Windows,
        graph: GraphSlots | CompiledSlots,
        *,
        step_samples: int,
        prompts: Prompts | None = None,
        bins_first: bool,
        capacity: int,
        largest: int,
    ) -> None:
        self.capacity = capacity
        row = step_samples + (prompts is not None)  # the last number chooses the language
        self.inputs: NDArray[Any] = np.zeros((min(largest, capacity), row), np.int16)
        self._samples, self._prompts = step_samples, prompts
        self._windows, self._graph = windows, graph
        self._bins_first = bins_first  # in the graph's output
        self._parts: tuple[Any, ...] = (windows, graph.states)
        self.state_bytes = sum(part.state_bytes for part in self._parts)

    @property
    def warmup_sizes(self) -> Sequence[int]:
        """Powers of two, and the largest batch."""
        largest = len(self.inputs)
        return sorted({*(1 << power for power in range(largest.bit_length())), largest})

    def warm_up_step(self, rows: int) -> None:
        """Run a batch of this many complete windows of silence; afterwards the states are undefined."""
        slots = np.arange(rows)
        self._windows.push(slots, np.zeros((rows, self._samples), np.int16))
        self._step(slots, self._windows.fill(rows), self._chosen(slots))

    def run(self, slots: Sequence[int]) -> Outputs:
        """Step these slots on the first rows of `inputs`; see `batching.SlotModel`."""
        indices = np.asarray(slots, np.int64)
        ready, windows = self._windows.push(indices, self.inputs[: len(indices), : self._samples])
        whole = len(ready) == len(indices)
        if not len(ready):
            return np.zeros((len(indices), *self.output_shape), np.float32)
        stepped = self._step(indices if whole else indices[ready], windows, self._chosen(ready))
        if whole:
            return stepped
        outputs = np.zeros((len(indices), *stepped.shape[1:]), np.float32)
        outputs[ready] = stepped
        return outputs

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one row's outputs."""
        result = self._graph.result_shape
        return result[::-1] if self._bins_first else result

    def _chosen(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the numbers of the languages of these rows of `inputs`: the automatic one without a choice."""
        if self._prompts is None:
            return None
        chosen = self.inputs[rows, self._samples].astype(np.int64) - 1
        return np.where((chosen >= 0) & (chosen < self._prompts.count), chosen, self._prompts.automatic)

    def _step(self, slots: NDArray[np.int64], windows: NDArray[Any], prompts: NDArray[np.int64] | None) -> Outputs:
        results = self._graph.run(slots, windows, prompts)
        return results.transpose(0, 2, 1) if self._bins_first else results  # (R, T, …)

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""
        for part in self._parts:
            part.reset(slot)

    def export(self, slot: int) -> bytes:
        """Return a copy of a slot's state."""
        return b"".join(part.export(slot) for part in self._parts)

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite a slot's state."""
        at = 0
        for part in self._parts:
            part.restore(slot, state[at : at + part.state_bytes])
            at += part.state_bytes
