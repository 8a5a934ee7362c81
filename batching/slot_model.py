"""The interface of a model that can be batched: states in numbered slots, rows to write inputs into, and one step.

A model satisfies it by structure and never imports it. It owns where the states live, in memory of whatever kind, and
everything that its arithmetic wants: padding, tiles, devices. Nothing here knows what a step means.

`SlotModel` is all that a model must be. `WarmupSizes`, `Overlapped` and `Chunked` are offers that it may make besides,
each found by its attributes and independent of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray


class SlotModel(Protocol):
    """A recurrent model over B streams at a time; each stream's state is in a slot of its own.

    One thread calls it. Of a call, B is the number of slots, and row i of inputs and outputs belongs to `slots[i]`. No
    row's outputs or next state depend on the other rows.
    """

    @property
    def capacity(self) -> int:
        """Number of slots, which are 0 … capacity - 1."""

    @property
    def inputs(self) -> NDArray[Any]:
        """(largest batch, …): rows to write the next inputs into, `capacity` at most; always the same memory."""

    @property
    def state_bytes(self) -> int:
        """Bytes of an exported state."""

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """Advance the streams in B different slots by one step, on the first B rows of `inputs`.

        Returns: (B, …) outputs, in memory that later calls do not write to. Raises: any `Exception` if the step failed;
        the states of these B slots are then undefined, those of the others as before. An error that is not an
        `Exception` says that no further step can run, because the device is lost: it ends the engine.
        """

    def reset(self, slot: int) -> None:
        """Make the slot's state that of a fresh stream."""

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state, `state_bytes` long."""

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state with one exported by this model or by another with the same weights."""


@runtime_checkable
class WarmupSizes(Protocol):
    """A slot model whose steps do not all cost the same, or whose every batch size need not be prepared.

    It says which sizes are, and runs the most that a step of so many rows can cost, before any slot is taken.
    """

    @property
    def warmup_sizes(self) -> Sequence[int]:
        """Batch sizes to be prepared, ascending, the largest batch last."""

    def warm_up_step(self, rows: int) -> None:
        """Run a batch of so many rows; afterwards the states are undefined. Raises: any error of the model's."""


@runtime_checkable
class Overlapped(Protocol):
    """A slot model whose step runs on a device of its own, so that its caller can do other work meanwhile.

    At most one step is in flight. Between `launch` and `finish` no other method of the model is called and `inputs` is
    not written. The engine calls this pair in place of `run`, and delivers the results of one batch during the next.
    """

    def launch(self, slots: Sequence[int], steps: int = 1) -> None:
        """Read the rows of `inputs` and start what `run` does; `steps` is 1 unless the model is `Chunked`, too.

        Returns before the step has ended, and does not wait for it. Raises: as `run`; nothing is in flight then.
        """

    def finish(self) -> NDArray[Any]:
        """Wait for the step that was launched. Returns: as `run`. Raises: as `run`; nothing is in flight then."""


@runtime_checkable
class Chunked(Protocol):
    """A slot model that advances B streams by several steps in one call, for less than the time of as many calls.

    Outputs and states have the bits that single steps give. The bound on rows holds for all steps together:
    B * steps <= len(inputs).
    """

    @property
    def chunk_steps(self) -> Sequence[int]:
        """Steps that a call may take, ascending, the first 1, such as (1, 2, 4, 8)."""

    def run(self, slots: Sequence[int], steps: int = 1) -> NDArray[Any]:
        """Advance the streams in B different slots by `steps` steps each, one of `chunk_steps`.

        Row i * steps + j of `inputs` is step j of the stream in `slots[i]`, and so are the outputs, (B * steps, …).
        Everything else is as in `SlotModel.run`; a failed call leaves the states of its slots undefined.
        """
