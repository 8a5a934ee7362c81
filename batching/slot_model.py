"""Interface of a model that can be batched: states in numbered slots, input rows, and one step function.

A model implements it by structure and never imports it. The model owns the memory of the states and all details of its
computation: padding, tiles, devices. This interface does not depend on what a step means.

`SlotModel` is required. `WarmupSizes`, `Overlapped` and `Chunked` are optional and independent capabilities, detected
by attribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray


class SlotModel(Protocol):
    """Recurrent model that steps B streams at a time; each stream's state is in a slot of its own.

    One thread calls it. B is the number of slots in a call; row i of inputs and outputs belongs to `slots[i]`. Outputs
    and next state of a row do not depend on the other rows.
    """

    @property
    def capacity(self) -> int:
        """Number of slots, numbered 0 … capacity - 1."""

    @property
    def inputs(self) -> NDArray[Any]:
        """(largest batch, …): rows for the next inputs, at most `capacity`; always the same memory."""

    @property
    def state_bytes(self) -> int:
        """Size of an exported state in bytes."""

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """Advance the streams in B different slots by one step, on the first B rows of `inputs`.

        Returns: (B, …) outputs, in memory that later calls do not write to. Raises: any `Exception` if the step failed;
        the states of these B slots are then undefined, those of the others unchanged. A `BaseException` that is not an
        `Exception` means that no further step can run, for example because the device is lost: it ends the engine.
        """

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state, `state_bytes` bytes."""

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state with one exported by this model or by another one with the same weights."""


@runtime_checkable
class WarmupSizes(Protocol):
    """A slot model that only needs warming up at certain batch sizes, or whose steps of one size differ in cost."""

    @property
    def warmup_sizes(self) -> Sequence[int]:
        """Batch sizes to warm up, ascending, the largest batch last."""

    def warm_up_step(self, rows: int) -> None:
        """Run the most expensive batch of this many rows, before any slot is in use.

        Afterwards the states are undefined. Raises: any error of the model.
        """


@runtime_checkable
class Overlapped(Protocol):
    """A slot model whose step runs on a device of its own while its caller does other work.

    At most one step is in flight. Between `launch` and `finish` no other method of the model is called and `inputs` is
    not written. The engine calls this pair instead of `run`, and delivers the results of one batch during the next.
    """

    def launch(self, slots: Sequence[int], steps: int = 1) -> None:
        """Read the rows of `inputs` and start a step; `steps` is 1 unless the model is also `Chunked`.

        Returns without waiting for the end of the step. Raises: as `run`; nothing is in flight then.
        """

    def finish(self) -> NDArray[Any]:
        """Wait for the launched step. Returns: as `run`. Raises: as `run`; nothing is in flight then."""


@runtime_checkable
class Chunked(Protocol):
    """A slot model that advances B streams by several steps in one call, faster than by single steps.

    Outputs and states are bit-identical to those of single steps. The bound on rows holds for all steps together:
    B * steps <= len(inputs).
    """

    @property
    def chunk_steps(self) -> Sequence[int]:
        """Numbers of steps that a call may run, ascending, the first 1, for example (1, 2, 4, 8)."""

    def run(self, slots: Sequence[int], steps: int = 1) -> NDArray[Any]:
        """Advance the streams in B different slots by `steps` steps each, one of `chunk_steps`.

        Row i * steps + j of `inputs` and of the outputs, (B * steps, …), is step j of the stream in `slots[i]`.
        Everything else is as in `SlotModel.run`; a failed call leaves the states of its slots undefined.
        """
