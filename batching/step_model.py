"""The interface of a model that can be batched: one step function, and the shapes of its inputs and its state.

A model satisfies it by structure and never imports it. Nothing here knows what a step means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


class RowSpec(Protocol):
    """One row of a tensor: a single stream's part, without the batch axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes after the batch axis."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The plain `RowSpec`; a model may bring its own."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class StepModel(Protocol):
    """A recurrent model as a pure function of (inputs, state), batch on axis 0 of every tensor.

    Everything that a stream carries from step to step is in `state`, by name; the model object holds none of it.
    A fresh stream's state is all zeros.
    """

    @property
    def input_spec(self) -> RowSpec:
        """One stream's input for one step; at least one axis."""

    @property
    def state_spec(self) -> Mapping[str, RowSpec]:
        """One stream's state, by name."""

    @property
    def min_rows(self) -> int:
        """Smallest batch from which on a row's result does not depend on the number of rows."""

    @property
    def device(self) -> torch.device:
        """Device of the tensors that `step` takes."""

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Advance B streams by one step: (B, …), {name: (B, …)} -> outputs (B, …), {name: (B, …)}.

        The tensors passed in are the engine's: valid during the call, and the inputs not to be written to.
        """


@runtime_checkable
class SlabModel(Protocol):
    """Optional interface of a `StepModel` on a CPU: it gathers and scatters the states in their slabs itself.

    Each torch call from Python releases the interpreter's lock and may wait a switch interval to get it back.
    A model that gathers, steps and scatters in one compiled call makes a batch wait once.
    """

    def in_slabs(self, inputs: Tensor, index: Tensor, slabs: Mapping[str, Tensor]) -> Callable[[int, int, int], Tensor]:
        """Return a step(first, count, kept) of streams whose inputs (R, …) and states {name: (any, …)} lie in slabs.

        It advances rows first … first + count of the inputs, row i having its state in row `index[i]` of the slabs, and
        stores the new states of the first `kept` of them in place; the others pad the batch, and theirs are dropped.
        Its outputs (count, …) are in memory of their own, and equal to those of `step` to the bit.
        """
