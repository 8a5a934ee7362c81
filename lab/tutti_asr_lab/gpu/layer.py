"""Host side of the kernels for a whole GRU layer and for the normalization alone: packing, constants, launches."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.torch_network.network import GRULayer
from tutti_asr_lab.gpu.driver import Kernel
from tutti_asr_lab.gpu.pack import LAYER_ROWS, MOST_SHARED_BYTES, STEP, TILE_ROWS, WARPS, Layout, layout_of, pack
from tutti_asr_lab.gpu.persistent import POLL_DELAY, SPIN_LIMIT, Workspace, range_of

SOURCE = Path(__file__).with_name("layer.cu")
GROUP = 16  # columns normalized and multiplied at a time
MOST_HELD = 30  # fragments of U in registers: with more the compiler spills; shared memory is fast enough for the rest
CAPABILITY = (9, 0)  # least of a device that runs the kernels of this file
FETCHERS = 64  # blocks that prefetch weights during a normalization
BLOCK_COLUMNS = 8  # of a normalization, one warp each


def layer_layout(hidden: int) -> tuple[Layout, int]:
    """Return the layout of the weights, and the bytes of shared memory (`LayerShared`).

    As much of U as fits is loaded to shared memory while the registers are used for the product with W, and moves to
    registers afterwards. Raises: ValueError if a layer of this size does not fit a multiprocessor.
    """
    layout = layout_of(hidden)
    layout = replace(layout, register_fragments=min(layout.register_fragments, MOST_HELD))
    for bulk in range(layout.fragments, layout.fragments - layout.register_fragments - 1, -1):
        tried = replace(layout, max_rows=LAYER_ROWS, bulk_fragments=bulk)
        room, own = GROUP * (hidden + 8) * 2, 2 * tried.segments * tried.tiles * STEP * TILE_ROWS * 4
        room = max(room, tried.segments * tried.tiles * STEP * (GROUP + 8) * 4)
        shared = tried.shared_bytes + max(room - own, 16) + -(-3 * tried.units * 4 // 16) * 16 + 16
        if shared + 32 <= MOST_SHARED_BYTES:
            return tried, shared + 32  # alignment
    raise ValueError(f"a whole layer of {hidden} units does not fit a multiprocessor")


def layer_fits(hidden: int, properties: Any) -> bool:
    """Return whether a device (`torch.cuda.get_device_properties`) can run a layer of this size in one launch.

    Bulk copies and overlapping launches require compute capability 9.0.
    """
    try:
        layout, shared = layer_layout(hidden)
    except ValueError:
        return False
    enough = layout.blocks <= properties.multi_processor_count and shared <= properties.shared_memory_per_block_optin
    return enough and (properties.major, properties.minor) >= CAPABILITY


def _kernel(hidden: int, entry: str, device: torch.device) -> Kernel:
    layout, shared = layer_layout(hidden) if entry == "gru_layer" else (layout_of(hidden), 0)
    defines = (
        {"BULK_FRAGMENTS": layout.fragments}
        | layout.defines()
        | {"SPIN_LIMIT": SPIN_LIMIT, "POLL_DELAY": POLL_DELAY, "GROUP": GROUP}
    )
    return Kernel(SOURCE, entry, defines, device, shared)


def split(packed: Tensor, layout: Layout) -> Tensor:
    """Reorder packed weights: per block first the fragments for shared memory, then those moved on to registers."""
    assert layout.bulk_fragments is not None
    blocks = packed.reshape(layout.blocks, WARPS, layout.fragments, -1)
    index = torch.arange(layout.fragments)
    place = index * layout.register_fragments // layout.fragments
    held = place != (index + 1) * layout.register_fragments // layout.fragments
    moved = layout.bulk_fragments - int((~held).sum())
    parts = [blocks[:, :, ~held], blocks[:, :, held][:, :, :moved], blocks[:, :, held][:, :, moved:]]
    return torch.cat([part.reshape(layout.blocks, -1) for part in parts], dim=1).reshape(-1).contiguous()


class PersistentLayer:
    """Normalization, W, U and the recurrence of one layer; gates in the order reset, update, candidate."""

    def __init__(self, norm: nn.LayerNorm, gru: GRULayer, device: torch.device, workspace: Workspace) -> None:
        """fp16 weights of any device; all layers share `workspace`. Raises: ValueError if they do not fit."""
        self.hidden = gru.hidden
        self.layout, _ = layer_layout(self.hidden)
        packed = self._packed(gru.input.weight, device)
        norms = [each.detach().to(device, torch.float16) for each in (norm.weight, norm.bias)]
        biases = [each.detach().to(device, torch.float32) for each in (gru.input.bias, gru.recurrent.bias)]
        # In one piece, so that the previous layer can prefetch all that this one reads first.
        parts = [each.contiguous().view(torch.uint8).flatten() for each in (packed, *norms, *biases)]
        self.weights = torch.cat(parts)
        starts = [0, *itertools.accumulate(len(part) for part in parts)]
        self.parts = [self.weights[start:] for start in starts[:-1]]  # W, scale, shift, biases of W and U
        self.recurrent = split(self._packed(gru.recurrent.weight, device), self.layout)
        self.epsilon = norm.eps
        self.workspace = workspace
        self.kernel = _kernel(self.hidden, "gru_layer", device)

    def _packed(self, weight: Tensor, device: torch.device) -> Tensor:
        return pack(weight.detach().to(device, torch.float16), self.layout)  # seconds faster per network there

    def enqueue(
        self, x_in: Tensor, x_out: Tensor, gates: Tensor, slab: Tensor, read: Tensor, write: Tensor, rows: Tensor,
        error: Tensor, frames: int, ahead: Tensor | None,
    ) -> None:  # fmt: skip
        """Run `frames` frames of the first `rows[0]` of B batch rows, on torch's current stream.

        x_in and x_out (B, T, H) fp16, different memory; `gates` (B, T, 3H) fp16 is scratch; slab (capacity + 2, H)
        fp16: row read[b] is h(0), row write[b] receives h(T), they may be equal; read, write (B,), rows and error
        (1,) int32. `ahead`: weights of the next kernel, to be prefetched.
        """
        assert len(read) <= LAYER_ROWS
        w, scale, shift, w_bias, u_bias = self.parts
        pointer = [_address(each) for each in (w, w_bias, scale, shift)]
        tensors = (self.recurrent, u_bias, gates, x_in, x_out, slab, read, write, rows, self.workspace.words, error)
        arguments = [*pointer, ctypes.c_float(self.epsilon), *_range(ahead), *map(_address, tensors)]
        self.kernel.launch(
            self.layout.blocks,
            32 * WARPS,
            [*arguments, ctypes.c_int(frames), ctypes.c_int(len(read))],
            early=True,  # excludes cooperative; the blocks fit an idle device, and waiting is bounded
        )


class NormKernel:
    """The normalization before a layer, bit-identical to that of `PersistentLayer`."""

    def __init__(self, norm: nn.LayerNorm, device: torch.device) -> None:
        """Raises: ValueError if a layer of this size has no layout."""
        hidden = len(norm.weight)
        self.parameters = [each.detach().to(device, torch.float16).contiguous() for each in (norm.weight, norm.bias)]
        self.epsilon = norm.eps
        self.kernel = _kernel(hidden, "layer_norm", device)

    def enqueue(self, x: Tensor, y: Tensor, columns: int, ahead: Tensor | None) -> None:
        """Normalize x (columns, H) fp16 to y; `ahead`: see `PersistentLayer`."""
        arguments = [_address(x), *map(_address, self.parameters), ctypes.c_float(self.epsilon), _address(y)]
        blocks = -(-columns // BLOCK_COLUMNS) + (0 if ahead is None else FETCHERS)
        self.kernel.launch(blocks, 32 * BLOCK_COLUMNS, [*arguments, ctypes.c_int(columns), *_range(ahead)])


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _range(ahead: Tensor | None) -> tuple[ctypes.c_void_p, ctypes.c_long]:
    return range_of([] if ahead is None else [ahead], 0)
