"""States of many streams: a tensor per name, a row per slot. Knows bytes, but neither steps nor streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row of a tensor, the part of one stream: shape without the batch axis, and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Slabs:
    """Tensors {name: (rows, …)} on one device, initially zero, with copies of single rows as bytes."""

    def __init__(self, spec: Mapping[str, RowSpec], rows: int, device: torch.device) -> None:
        self.tensors = {
            name: torch.zeros((rows, *row.shape), dtype=row.dtype, device=device) for name, row in spec.items()
        }
        self._device = device
        flat = [slab.flatten().view(torch.uint8) for slab in self.tensors.values() if slab.numel()]
        sizes = [len(memory) // rows for memory in flat]
        self.row_bytes = sum(sizes)
        # Each slab's memory as bytes, and the size of its rows. On a CPU a memoryview, whose copies never release the
        # interpreter lock.
        on_cpu = device.type == "cpu"
        self._bytes: list[tuple[Any, int]] = [
            (memory.numpy().data if on_cpu else memory, size) for memory, size in zip(flat, sizes, strict=True)
        ]

    def copy_out(self, row: int) -> bytes:
        """Return a copy of a row of all tensors, `row_bytes` bytes, in the order of the spec."""
        rows = [memory[row * size : (row + 1) * size] for memory, size in self._bytes]
        if self._device.type == "cpu" or not rows:
            return b"".join(rows)
        whole: NDArray[np.uint8] = torch.cat(rows).cpu().numpy()  # one copy to the host
        return whole.tobytes()

    def copy_in(self, row: int, values: bytes) -> None:
        """Overwrite a row of all tensors with bytes from `copy_out`."""
        whole: Any = values
        if self._device.type != "cpu":
            whole = torch.from_numpy(np.frombuffer(values, np.uint8).copy()).to(self._device)
        end = 0
        for memory, size in self._bytes:
            begin, end = end, end + size
            memory[row * size : (row + 1) * size] = whole[begin:end]
