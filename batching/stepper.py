"""One batch through the slot model: writes its inputs, and is the only caller of its `run`, `launch` and `finish`.

It knows rows, and no queue or thread. The code that runs for every batch never releases the interpreter's lock outside
the model: beside a busy event loop each release costs up to a switch interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from batching.errors import StepFailed
from batching.pool import Handle, SlotPool
from batching.slot_model import Overlapped, Rehearsed, SlotModel

WARM_RUNS = 3  # of which the fastest counts: a disturbance only ever lengthens a run
LONG_RUN_S = 0.1  # a run so long is timed once: a start should not take many times that


class Stepper:
    """The slot model, and the pool of its slots."""

    def __init__(self, model: SlotModel) -> None:
        self.pool = SlotPool(model)
        self._model = model
        self._overlapped = model if isinstance(model, Overlapped) else None
        self._slots: list[int] = []  # of the batch that was launched last
        self._inputs = model.inputs.data.cast("B")  # the same memory, as bytes

    @property
    def overlaps(self) -> bool:
        """Whether a batch runs while the caller does other work, between `launch` and `finish`."""
        return self._overlapped is not None

    def warm_up(self, clock: Callable[[], float]) -> dict[int, float]:
        """Step batches of every size, before any slot is taken. Returns: seconds by rows, powers of 2 and the largest.

        Of a model that is `Rehearsed`, the sizes that it names.

        Libraries prepare their kernels for a shape at its first use: with oneDNN that costs several milliseconds, which
        no stream's batch should pay. Raises: any error of the model's.
        """
        assert not self.pool.used, "a warm-up changes the states of all slots"
        seconds: dict[int, float] = {}
        largest = len(self._model.inputs)
        sizes = self._model.rehearsed_sizes if isinstance(self._model, Rehearsed) else range(1, largest + 1)
        for rows in sizes:
            first_s = self._time(rows, clock)
            if rows == largest or rows.bit_count() == 1:  # powers of two are enough to draw a line through
                runs = 1 if first_s > LONG_RUN_S else WARM_RUNS
                seconds[rows] = min(self._time(rows, clock) for _ in range(runs))
        return seconds

    def _time(self, rows: int, clock: Callable[[], float]) -> float:
        began_s = clock()
        if isinstance(self._model, Rehearsed):
            self._model.rehearse(rows)
        else:
            self._model.run(range(rows))
        return clock() - began_s

    def run(self, handles: Sequence[Handle], inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Advance B streams by one step; row i of `inputs` is the next input of `handles[i]`.

        Returns: (B, …) outputs in fresh memory. Raises: StepFailed, and the states of the batch are then undefined;
        StaleHandle, RepeatedHandle.
        """
        self.launch(handles, inputs)
        return self.finish()

    def launch(self, handles: Sequence[Handle], inputs: Sequence[NDArray[Any]]) -> None:
        """Do what comes before `finish`: all that does not wait for the step. Raises: as `run`."""
        self._slots = self.pool.slots(handles)
        joined = _joined(inputs)
        self._inputs[: len(joined)] = joined
        if self._overlapped is not None:
            try:
                self._overlapped.launch(self._slots)
            except Exception as error:
                raise self._failed(error) from error

    def finish(self) -> NDArray[Any]:
        """Return the outputs of the batch that was launched last, once it has ended. Raises: StepFailed."""
        try:
            outputs = self._model.run(self._slots) if self._overlapped is None else self._overlapped.finish()
        except Exception as error:  # the model is foreign code, and must not take the other streams with it
            raise self._failed(error) from error
        if len(outputs) != len(self._slots):
            raise StepFailed(f"{len(self._slots)} rows went in, {len(outputs)} came out")
        return outputs

    def _failed(self, error: Exception) -> StepFailed:
        return StepFailed(f"a step of {len(self._slots)} streams failed: {type(error).__name__}: {error}")


def _joined(rows: Sequence[Any]) -> bytes:
    """Bytes of all rows; numpy's own joining would release the interpreter's lock once a row."""
    try:
        return b"".join(rows)
    except TypeError:  # a view with gaps has no contiguous bytes
        return b"".join([row.tobytes() for row in rows])
