"""Interface of a torch model that can be served, and the slot model built from it: states in slabs, a row per slot.

A pure step function and the shapes of its inputs and state suffice (`StepModel`); both interfaces, this one and
`batching.SlotModel`, are implemented by structure. Nothing here knows what a step means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.errors import DeviceLost
from model.torch_network.slabs import RowSpec, Slabs

InPlaceStep = Callable[[int, int, int], Tensor]
"""step(first, count, kept): advance rows first … first + count - 1 of the inputs; the state of row i is row `index[i]`
of the slabs. Store the new states of the first `kept` rows in place; the other rows are padding.
Returns: outputs (count, …) in new host memory."""


class StepModel(Protocol):
    """A recurrent model as a pure function of (inputs, state), with the batch on axis 0 of every tensor.

    Everything that a stream carries from step to step is in `state`, by name; the model object has no stream state.
    The state of a new stream is all zeros.
    """

    @property
    def input_spec(self) -> RowSpec:
        """Input of one stream for one step; at least one axis."""

    @property
    def state_spec(self) -> Mapping[str, RowSpec]:
        """State of one stream, by name."""

    @property
    def min_rows(self) -> int:
        """Smallest batch from which a row's result does not depend on the number of rows."""

    @property
    def device(self) -> torch.device:
        """Device of the tensors for `step`."""

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Advance B streams by one step: (B, …), {name: (B, …)} -> outputs (B, …), {name: (B, …)}.

        The tensors passed in belong to the caller: they are valid during the call, and inputs must not be written.
        """


class TorchSlots:
    """Slots for a step model: gathers the states of a batch, steps, scatters them, copies outputs to the host.

    Small batches are padded to `min_rows` with a scratch row, which is always in its initial state.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        capacity: int,
        largest: int,
        tile_rows: int | None = None,
        record: Callable[[Tensor, Tensor, dict[str, Tensor]], InPlaceStep] | None = None,
    ) -> None:
        """Allocate `capacity` slots, and inputs for batches of at most `largest` rows.

        With `tile_rows`, every call of the model has exactly this many rows for any batch, so that the results of a
        stream are bit-identical with any other rows; None = as many rows as the batch has. `record`, on
        a CPU, creates a step that also gathers and scatters, from inputs (R, …), index (R,) int64 and slabs
        {name: (any, …)}: each torch call from Python releases the interpreter lock and may wait a switch interval to
        get it back, and such a step is one call. Its results are bit-identical to those of the model's `step`.
        Raises: ValueError for a capacity or a batch below 1, and for tiles smaller than the model's `min_rows`.
        """
        if min(capacity, largest) < 1:
            raise ValueError(f"capacity and largest batch must be at least 1, not {capacity} and {largest}")
        if tile_rows is not None and tile_rows < model.min_rows:
            raise ValueError(f"tile_rows must be at least {model.min_rows} for this model, not {tile_rows}")
        self.capacity = capacity
        self._model = model
        self._tile_rows = tile_rows
        self._device = model.device
        self._states = Slabs(model.state_spec, capacity + 1, self._device)  # the last row is the scratch row
        self._slabs = self._states.tensors
        self.state_bytes = self._states.row_bytes
        largest = min(largest, capacity)
        most = largest + max(tile_rows or 0, model.min_rows)  # upper bound of rows with padding
        spec = model.input_spec
        # Pinned memory allows asynchronous copies to the device. One block is sufficient: `run` returns only
        # when the outputs are on the host, so after the device has read inputs and index.
        pinned = self._device.type == "cuda"
        self._staged = torch.zeros((most, *spec.shape), dtype=spec.dtype, pin_memory=pinned)
        self._index = torch.zeros(most, dtype=torch.int64, pin_memory=pinned)
        host = self._staged.numpy()  # shares the memory, like the next three
        self.inputs: NDArray[Any] = host[:largest]
        self._input_bytes = host.data.cast("B")
        self._slots = self._index.numpy()
        self._step = record(self._staged, self._index, self._slabs) if record else self._gather_step_scatter

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """Step these slots on the first rows of `inputs`; see `batching.SlotModel`.

        Raises: any error of the model; ValueError for a wrong number of output rows; DeviceLost.
        """
        count = len(slots)
        rows = self._tile_rows or max(count, self._model.min_rows)
        total = -(-count // rows) * rows
        self._slots[:total] = [*slots, *[self.capacity] * (total - count)]
        if total > count:
            size = len(self._input_bytes) // len(self._staged)
            self._input_bytes[count * size : total * size] = bytes((total - count) * size)
        try:
            with torch.inference_mode():
                tiles = [self._step(first, rows, min(rows, count - first)) for first in range(0, total, rows)]
        except Exception:
            check_device(self._device)
            raise
        if any(len(tile) != rows for tile in tiles):
            raise ValueError(f"the model returned {[len(tile) for tile in tiles]} rows for {rows} rows of input")
        outputs = [tile.numpy() for tile in tiles]
        return (outputs[0] if len(outputs) == 1 else np.concatenate(outputs))[:count]

    def reset(self, slot: int) -> None:
        """Zero the slot's state."""
        self.restore(slot, bytes(self.state_bytes))

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state, in the order of the spec."""
        return self._states.copy_out(slot)

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state with one exported by the same spec."""
        self._states.copy_in(slot, state)

    def _gather_step_scatter(self, first: int, count: int, kept: int) -> Tensor:
        """`InPlaceStep` by calls of torch."""
        inputs, index = self._staged[first : first + count], self._index[first : first + count]
        if self._device.type != "cpu":
            inputs, index = inputs.to(self._device, non_blocking=True), index.to(self._device, non_blocking=True)
        state = {name: slab.index_select(0, index) for name, slab in self._slabs.items()}
        outputs, after = self._model.step(inputs, state)
        for name, slab in self._slabs.items():
            slab.index_copy_(0, index[:kept], after[name][:kept])
        return outputs.to("cpu", copy=True)  # a model may return its inputs


def check_device(device: torch.device) -> None:
    """Check after a failed step whether the device is lost. Raises: DeviceLost."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise DeviceLost(f"{device} is lost: {error}") from error
