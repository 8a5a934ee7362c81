"""Buffers of a step: host inputs and outputs, each in one piece of memory.

Each piece is one tensor of bytes with several arrays, so a step needs one copy to the device and one back. The
arrays that grow with the batch are last, so a small batch copies few bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model.torch_network.slabs import RowSpec

ALIGNMENT = 16  # bytes: the widest access of a kernel
Array = tuple[str, tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Buffers of a step of R rows by k single steps, on the compute device.

    `rows` (1,) int32: number of real rows, at most R; others are padding. `read` and `write` (R,) int32: rows of the
    slabs with the states before and after the step; they may be equal for a row. `pcm`
    (R, k * S) int16 and `out` (R, k * T, outputs) float32: inputs and outputs.
    """

    rows: Tensor
    read: Tensor
    write: Tensor
    pcm: Tensor
    out: Tensor


class Arrays:
    """Several arrays in one piece of memory; the last one may be used in part."""

    def __init__(self, arrays: list[Array], device: torch.device, *, pinned: bool = False) -> None:
        self._arrays, self._offsets, end = arrays, dict[str, int](), 0
        for name, shape, dtype in arrays:
            self._offsets[name] = end
            end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.whole = torch.zeros(end, dtype=torch.uint8, device=device, pin_memory=pinned)

    def __getitem__(self, name: str) -> Tensor:
        """Return a view of the array."""
        shape, dtype = next(array[1:] for array in self._arrays if array[0] == name)
        begin = self._offsets[name]
        return self.whole[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def up_to(self, rows: int) -> Tensor:
        """Return the bytes up to the first `rows` rows of the last array, a view."""
        name, shape, dtype = self._arrays[-1]
        return self.whole[: self._offsets[name] + rows * math.prod(shape[1:]) * dtype.itemsize]


class StepMemory:
    """Buffers of one side for steps of at most R rows: on the host, pinned if there is a GPU, or on the device."""

    def __init__(self, rows: int, inputs: RowSpec, outputs: RowSpec, device: torch.device, *, pinned: bool) -> None:
        index = ((rows,), torch.int32)
        pcm = ("pcm", (rows, *inputs.shape), inputs.dtype)
        count = ("rows", (1,), torch.int32)
        self.inputs = Arrays([count, ("read", *index), ("write", *index), pcm], device, pinned=pinned)
        self.outputs = Arrays([("out", (rows, *outputs.shape), outputs.dtype)], device, pinned=pinned)

    def block(self, rows: int, steps: int) -> StepBlock:
        """Return the buffers of a step of `rows` rows by `steps` single steps, rows * steps <= R."""
        pcm, out = self.inputs["pcm"][: rows * steps], self.outputs["out"][: rows * steps]
        return StepBlock(
            rows=self.inputs["rows"],
            read=self.inputs["read"][:rows],
            write=self.inputs["write"][:rows],
            pcm=pcm.view(rows, steps * pcm.shape[1]),
            out=out.view(rows, steps * out.shape[1], *out.shape[2:]),
        )
