"""Runs one batch through the slot model: writes its inputs, and is the only caller of `run`, `launch` and `finish`.

Independent of queues and threads. Code that runs for every batch does not release the interpreter lock outside the
model: while an event loop is busy, each release can cost up to a switch interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from batching.errors import StepFailed
from batching.pool import Handle, SlotPool
from batching.slot_model import Chunked, Overlapped, SlotModel, WarmupSizes

WARM_RUNS = 3  # the fastest counts, because a disturbance only lengthens a run
LONG_RUN_S = 0.1  # a size whose first run takes longer is timed once, which bounds the start time


class Stepper:
    """A slot model with the pool of its slots."""

    def __init__(self, model: SlotModel, *, chunks: bool = True) -> None:
        self.pool = SlotPool(model)
        self._model = model
        self._overlapped = model if isinstance(model, Overlapped) else None
        self.overlaps = self._overlapped is not None  # the caller can do other work between `launch` and `finish`
        self._chunked = model if chunks and isinstance(model, Chunked) else None
        self._slots: list[int] = []  # of the batch launched last
        self._steps = 1  # of each stream in it
        self._inputs = model.inputs.data.cast("B")  # the same memory, as bytes

    @property
    def chunk_steps(self) -> Sequence[int]:
        """Numbers of steps per stream that a batch may have, ascending, the first 1."""
        return (1,) if self._chunked is None else self._chunked.chunk_steps

    def warm_up(self, clock: Callable[[], float]) -> dict[int, float]:
        """Step batches of every size, or of the sizes that a `WarmupSizes` model lists, before any slot is in use.

        Libraries prepare their kernels for a shape at its first use, which with oneDNN takes several milliseconds; the
        warm-up keeps that out of the batches of streams. Returns: seconds by rows, for powers of 2 and the largest.
        Raises: any error of the model.
        """
        return self._warm_up(clock, 1)

    def warm_up_chunks(self, clock: Callable[[], float]) -> dict[int, dict[int, float]]:
        """Step chunks of every length above 1. Returns: {steps: {streams: seconds}}. Raises: any error of the model."""
        return {steps: self._warm_up(clock, steps) for steps in self.chunk_steps[1:]}

    def _warm_up(self, clock: Callable[[], float], steps: int) -> dict[int, float]:
        assert not self.pool.used, "a warm-up overwrites the states of all slots"
        seconds: dict[int, float] = {}
        largest = len(self._model.inputs) // steps
        if steps > 1:
            largest = min(largest, self._model.capacity)  # a chunk may have more rows than there are slots
        sizes = self._model.warmup_sizes if isinstance(self._model, WarmupSizes) else range(1, largest + 1)
        for streams in (size for size in sizes if size <= largest):
            first_s = self._time(streams, steps, clock)
            if streams == largest or streams.bit_count() == 1:  # powers of two suffice for interpolation
                runs = 1 if first_s > LONG_RUN_S else WARM_RUNS
                seconds[streams] = min(self._time(streams, steps, clock) for _ in range(runs))
        return seconds

    def _time(self, streams: int, steps: int, clock: Callable[[], float]) -> float:
        began_s = clock()
        if steps == 1 and isinstance(self._model, WarmupSizes):
            self._model.warm_up_step(streams)
        else:
            self._step(range(streams), steps)
        return clock() - began_s

    def run(self, handles: Sequence[Handle], inputs: Sequence[NDArray[Any] | bytes], steps: int = 1) -> NDArray[Any]:
        """Advance B streams by `steps` steps each; rows i * steps … i * steps + steps - 1 belong to `handles[i]`.

        `inputs`: rows, as arrays or as their bytes. Returns: (B * steps, …) outputs in new memory. Raises: StepFailed,
        after which the states of the batch are undefined; StaleHandle, RepeatedHandle.
        """
        self.launch(handles, inputs, steps)
        return self.finish()

    def launch(self, handles: Sequence[Handle], inputs: Sequence[NDArray[Any] | bytes], steps: int = 1) -> None:
        """Write the inputs and, if the model is `Overlapped`, start the step. Raises: as `run`."""
        self._slots, self._steps = self.pool.slots(handles), steps
        joined = _joined(inputs)
        self._inputs[: len(joined)] = joined
        if self._overlapped is not None:
            try:
                self._overlapped.launch(self._slots, steps)
            except Exception as error:
                raise self._failed(error) from error

    def finish(self) -> NDArray[Any]:
        """Wait for the batch launched last and return its outputs. Raises: StepFailed."""
        try:
            outputs = self._step(self._slots, self._steps) if self._overlapped is None else self._overlapped.finish()
        except Exception as error:  # the model is foreign code: its error must not end the other streams
            raise self._failed(error) from error
        rows = len(self._slots) * self._steps
        if len(outputs) != rows:
            raise StepFailed(f"the model returned {len(outputs)} rows for {rows} rows of input")
        return outputs

    def _step(self, slots: Sequence[int], steps: int) -> NDArray[Any]:
        if steps == 1:
            return self._model.run(slots)
        assert self._chunked is not None, "the model runs one step per call"
        return self._chunked.run(slots, steps)

    def _failed(self, error: Exception) -> StepFailed:
        return StepFailed(f"a step of {len(self._slots)} streams failed: {type(error).__name__}: {error}")


def _joined(rows: Sequence[Any]) -> bytes:
    """Bytes of all rows. numpy's own concatenation would release the interpreter lock once per row."""
    try:
        return b"".join(rows)
    except TypeError:  # a row is not contiguous
        return b"".join([row.tobytes() for row in rows])
