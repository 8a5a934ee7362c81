"""The buffers of a step: what the host writes before it and reads after it, in one piece of memory each way.

Each piece is one tensor of bytes with several arrays in it, so a step needs one copy to the device and one back. The
arrays that grow with the batch come last: a small batch copies few bytes.
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
    """Buffers of a step of R rows by k single steps, on the device that computes it.

    `rows` (1,) int32: the real rows, R at most; the others pad the batch. `read` and `write` (R,) int32: rows of the
    slabs that hold the states before the step, and that take those after it; of a row they may be the same. `pcm`
    (R, k * S) int16 and `out` (R, k * T, outputs) float32: inputs and outputs. `error` (1,) int32: 0, or why a kernel
    gave up.
    """

    rows: Tensor
    read: Tensor
    write: Tensor
    pcm: Tensor
    error: Tensor
    out: Tensor


class Arrays:
    """Several arrays in one piece of memory; the last of them may be used in part."""

    def __init__(self, arrays: list[Array], device: torch.device, *, pinned: bool = False) -> None:
        self._arrays, self._offsets, end = arrays, dict[str, int](), 0
        for name, shape, dtype in arrays:
            self._offsets[name] = end
            end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.whole = torch.zeros(end, dtype=torch.uint8, device=device, pin_memory=pinned)

    def __getitem__(self, name: str) -> Tensor:
        """The array, a view."""
        shape, dtype = next(array[1:] for array in self._arrays if array[0] == name)
        begin = self._offsets[name]
        return self.whole[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def up_to(self, rows: int) -> Tensor:
        """The memory up to the first `rows` rows of the last array, a view of bytes."""
        name, shape, dtype = self._arrays[-1]
        return self.whole[: self._offsets[name] + rows * math.prod(shape[1:]) * dtype.itemsize]


class StepMemory:
    """One side's buffers of steps of at most R rows: of the host, pinned where there is a GPU, or of the device."""

    def __init__(self, rows: int, inputs: RowSpec, outputs: RowSpec, device: torch.device, *, pinned: bool) -> None:
        index, one = ((rows,), torch.int32), ((1,), torch.int32)
        pcm = ("pcm", (rows, *inputs.shape), inputs.dtype)
        self.inputs = Arrays([("rows", *one), ("read", *index), ("write", *index), pcm], device, pinned=pinned)
        out = ("out", (rows, *outputs.shape), outputs.dtype)
        self.outputs = Arrays([("error", *one), out], device, pinned=pinned)

    def block(self, rows: int, steps: int) -> StepBlock:
        """The buffers of a step of `rows` rows by `steps` single steps, rows * steps <= R."""
        pcm, out = self.inputs["pcm"][: rows * steps], self.outputs["out"][: rows * steps]
        return StepBlock(
            rows=self.inputs["rows"],
            read=self.inputs["read"][:rows],
            write=self.inputs["write"][:rows],
            pcm=pcm.view(rows, steps * pcm.shape[1]),
            error=self.outputs["error"],
            out=out.view(rows, steps * out.shape[1], *out.shape[2:]),
        )
