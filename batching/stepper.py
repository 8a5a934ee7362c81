"""One batch through the model: owns the input slab and the state pool, and the only place that calls `step`.

It knows rows and devices, and no queue, time or thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from batching.errors import StepFailed
from batching.pool import Handle, StatePool
from batching.step_model import StepModel


class Stepper:
    """Gathers the members' states, steps the model, scatters the states back, brings the outputs to the host."""

    def __init__(self, model: StepModel, *, capacity: int, max_batch: int, tile_rows: int | None) -> None:
        """Allocate for `capacity` streams and batches of at most `max_batch`.

        With `tile_rows`, every call of the model has exactly that many rows, whatever the batch, so that a stream's
        arithmetic is the same to the bit in any company; None = as many rows as the batch has.
        Raises: ValueError for tiles smaller than the model's `min_rows`.
        """
        if tile_rows is not None and tile_rows < model.min_rows:
            raise ValueError(f"tile_rows {tile_rows} is below the model's minimum of {model.min_rows} rows")
        self.pool = StatePool(model.state_spec, capacity, model.device)
        self._model = model
        self._min_rows = model.min_rows
        self._tile_rows = tile_rows
        self._device = model.device
        row = model.input_spec
        rows = self._padded(min(max_batch, capacity))
        # Pinned memory is what lets a copy to the device run beside the host. One slab is enough: `run` returns only
        # when the outputs are here, and so after the device has read the inputs.
        self._slab = torch.zeros((rows, *row.shape), dtype=row.dtype, pin_memory=self._device.type == "cuda")
        self._host = self._slab.numpy()  # the same memory
        self._joined = self._host.reshape(rows * row.shape[0], *row.shape[1:])  # the same again, rows end to end

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one stream's input."""
        return self._host.shape[1:]

    @property
    def input_dtype(self) -> np.dtype:
        """Element type of one stream's input."""
        return self._host.dtype

    def warm_up(self) -> None:
        """Step scratch rows in every size that a batch can have.

        Libraries prepare their kernels for a shape when they first meet it: with oneDNN that costs a batch several
        milliseconds, which no stream should pay. Raises: whatever the model raises.
        """
        sizes = dict.fromkeys(self._tile_rows or self._padded(count) for count in range(1, len(self._slab) + 1))
        for rows in sizes:
            self._step((), self._stage((), rows), self.pool.gather((), rows))

    def run(self, handles: Sequence[Handle], inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Advance B streams by one step; row i of `inputs` is the next input of `handles[i]`.

        Returns: (B, …) outputs in fresh memory. Raises: StepFailed; the states of the batch are then undefined.
        """
        count = len(handles)
        total = self._padded(count)
        rows = self._tile_rows or total
        staged = self._stage(inputs, total)
        tiles = [slice(first, first + rows) for first in range(0, total, rows)]
        states = [self.pool.gather(handles[tile], rows) for tile in tiles]
        try:
            outputs = [
                self._step(handles[tile], staged[tile], state) for tile, state in zip(tiles, states, strict=True)
            ]
            # cat copies even a single tile, so the result never aliases memory that the next batch overwrites.
            return torch.cat(outputs).cpu()[:count].numpy()
        except Exception as error:  # the model is foreign code, and must not take the other streams with it
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # raises if the device itself is lost: that ends the engine
            raise StepFailed(f"a step of {count} streams failed: {type(error).__name__}: {error}") from error

    def _step(self, handles: Sequence[Handle], inputs: Tensor, state: dict[str, Tensor]) -> Tensor:
        outputs, state = self._model.step(inputs, state)
        if len(outputs) != len(inputs):
            raise ValueError(f"{len(inputs)} rows went in, {len(outputs)} came out")
        self.pool.scatter(handles, state)
        return outputs

    def _stage(self, inputs: Sequence[np.ndarray], total: int) -> Tensor:
        """Copy the inputs into the slab, zeros below them, and the slab to the device."""
        count = len(inputs)
        if count:
            np.concatenate(inputs, out=self._joined[: count * self._host.shape[1]])  # one call, not one per row
        self._host[count:total] = 0
        return self._slab[:total].to(self._device, non_blocking=True)

    def _padded(self, count: int) -> int:
        """Rows that a batch of `count` takes: whole tiles, or at least the model's minimum."""
        if self._tile_rows is None:
            return max(count, self._min_rows)
        return -(-count // self._tile_rows) * self._tile_rows
