"""One batch through the model: owns the state pool and the input slab, and is the only caller of the model.

It knows rows and devices, and no queue, time or thread. The code that runs for every batch releases the interpreter's
lock as seldom as possible: beside a busy event loop each release costs up to a switch interval. With a `SlabModel` that
is once a tile: joining bytes, and numpy's writing of few numbers, do not release it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batching.errors import StepFailed
from batching.pool import Handle, StatePool
from batching.step_model import SlabModel, StepModel

WARM_RUNS = 3  # of which the fastest counts: a disturbance only ever lengthens a run


class Stepper:
    """Gathers the members' states, steps the model, scatters the states back, brings the outputs to the host."""

    def __init__(self, model: StepModel, *, capacity: int, max_batch: int, tile_rows: int | None) -> None:
        """Allocate for `capacity` streams and batches of at most `max_batch`.

        With `tile_rows`, every call of the model has exactly that many rows, whatever the batch, so that a stream's
        arithmetic is the same to the bit whatever the other rows; None = as many rows as the batch has.
        Raises: ValueError for tiles smaller than the model's `min_rows`.
        """
        if tile_rows is not None and tile_rows < model.min_rows:
            raise ValueError(f"tile_rows {tile_rows} is below the model's minimum of {model.min_rows} rows")
        self.pool = StatePool(model.state_spec, capacity, model.device)
        self._model = model
        self._min_rows = model.min_rows
        self._tile_rows = tile_rows
        self._device = model.device
        spec = model.input_spec
        self._largest = self._padded(min(max_batch, capacity))
        # Pinned memory lets a copy to the device run beside the host. One slab is enough: `run` returns only when the
        # outputs are on the host, and so after the device has read the inputs.
        pinned = self._device.type == "cuda"
        self._slab = torch.zeros((self._largest, *spec.shape), dtype=spec.dtype, pin_memory=pinned)
        host = self._slab.numpy()  # the same memory
        self._blank: np.ndarray = np.zeros(host.shape[1:], host.dtype)
        self._bytes = host.data.cast("B")  # the same memory
        index = torch.zeros(self._largest, dtype=torch.int64)
        self._index = index.numpy()  # the same memory
        self._in_slabs: Callable[[int, int, int], Tensor] | None = None
        if self._device.type == "cpu" and isinstance(model, SlabModel):
            self._in_slabs = model.in_slabs(self._slab, index, self.pool.slabs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one stream's input."""
        return self._blank.shape

    @property
    def input_dtype(self) -> np.dtype:
        """Element type of one stream's input."""
        return self._blank.dtype

    def warm_up(self, clock: Callable[[], float]) -> dict[int, float]:
        """Step scratch rows in every batch size. Returns: seconds by rows, of the powers of two and the largest.

        Libraries prepare their kernels for a shape at its first use: with oneDNN that costs several milliseconds, which
        no stream's batch should pay. Raises: any error of the model's.
        """
        seconds: dict[int, float] = {}
        for rows in dict.fromkeys(self._tile_rows or self._padded(count) for count in range(1, self._largest + 1)):
            self._time(rows, clock)
            if rows == self._largest or rows.bit_count() == 1:  # powers of two are enough to draw a line through
                seconds[rows] = min(self._time(rows, clock) for _ in range(WARM_RUNS))
        return seconds

    def _time(self, rows: int, clock: Callable[[], float]) -> float:
        began_s = clock()
        self._stage((), (), rows)
        self._outputs((), rows)
        return clock() - began_s

    def run(self, handles: Sequence[Handle], inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Advance B streams by one step; row i of `inputs` is the next input of `handles[i]`.

        Returns: (B, …) outputs in fresh memory. Raises: StepFailed, and the states of the batch are then undefined;
        StaleHandle, RepeatedHandle.
        """
        count = len(handles)
        total = self._padded(count)
        self._stage(handles, inputs, total)
        try:
            return self._outputs(handles, total)[:count]
        except Exception as error:  # the model is foreign code, and must not take the other streams with it
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # raises if the device itself is lost: that ends the engine
            raise StepFailed(f"a step of {count} streams failed: {type(error).__name__}: {error}") from error

    def _stage(self, handles: Sequence[Handle], inputs: Sequence[np.ndarray], total: int) -> None:
        """Write the state index of `total` rows and join their inputs in the slab, zeros for padding rows."""
        self._index[:total] = self.pool.index(handles, total)
        rows: list[Any] = [*inputs, *[self._blank] * (total - len(inputs))]
        try:
            joined = b"".join(rows)  # numpy's own joining releases the lock once a row
        except TypeError:  # a view with gaps has no contiguous bytes
            joined = b"".join([row.tobytes() for row in rows])
        self._bytes[: len(joined)] = joined

    def _outputs(self, handles: Sequence[Handle], total: int) -> np.ndarray:
        """Step the staged rows, tile by tile. Returns: the outputs of all rows, in fresh memory."""
        rows = self._tile_rows or total
        firsts = range(0, total, rows)
        if self._in_slabs is None:
            staged = self._slab[:total].to(self._device, non_blocking=True)
            # cat copies even a single tile, so the result never aliases memory that the next batch overwrites.
            outputs = [self._step(handles[i : i + rows], staged[i : i + rows]) for i in firsts]
            return torch.cat(outputs).cpu().numpy()
        answers = [_checked(self._in_slabs(i, rows, min(rows, len(handles) - i)), rows).numpy() for i in firsts]
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    def _step(self, handles: Sequence[Handle], inputs: Tensor) -> Tensor:
        outputs, state = self._model.step(inputs, self.pool.gather(handles, len(inputs)))
        _checked(outputs, len(inputs))
        self.pool.scatter(handles, state)
        return outputs

    def _padded(self, count: int) -> int:
        """Rows that a batch of `count` takes: whole tiles, or at least the model's minimum."""
        if self._tile_rows is None:
            return max(count, self._min_rows)
        return -(-count // self._tile_rows) * self._tile_rows


def _checked(outputs: Tensor, rows: int) -> Tensor:
    if len(outputs) != rows:
        raise ValueError(f"{rows} rows went in, {len(outputs)} came out")
    return outputs
