"""Host side of the persistent GRU kernels: packed weights, the workspace shared by layers, and the launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tutti_asr_lab.gpu.driver import Kernel, KernelError
from tutti_asr_lab.gpu.pack import MAX_ROWS, WARPS, Layout, backward_layout_of, layout_of, pack, pack_transposed

SOURCE = Path(__file__).with_name("gru.cu")
BACKWARD_SOURCE = Path(__file__).with_name("gru_backward.cu")
POLL_DELAY = 0  # cycles from a frame's sums to the first poll for the other blocks' states, with up to 8 rows
SPIN_LIMIT = 1 << 22  # polls: some seconds; an exchange takes microseconds


def range_of(ahead: Sequence[Tensor], at: int) -> tuple[ctypes.c_void_p, ctypes.c_long]:
    """Return address and bytes of one of the tensors to prefetch into L2; zeros if there are fewer."""
    if at >= len(ahead):
        return ctypes.c_void_p(), ctypes.c_long(0)
    return ctypes.c_void_p(ahead[at].data_ptr()), ctypes.c_long(ahead[at].nbytes // 16 * 16)


def fits(hidden: int, properties: Any, *, training: bool = False) -> bool:
    """Return whether the kernel can hold a layer of this size on a device (`torch.cuda.get_device_properties`).

    `training`: and the kernel of the backward pass.
    """
    try:
        layouts = [layout_of(hidden), *([backward_layout_of(hidden)] if training else [])]
    except ValueError:
        return False
    shared: int = getattr(properties, "shared_memory_per_block_optin", 0)
    enough = all(
        layout.blocks <= properties.multi_processor_count and layout.shared_bytes <= shared for layout in layouts
    )
    return enough and (properties.major, properties.minor) >= (8, 0)


class Workspace:
    """Device memory in which the blocks of a launch exchange states: error word, epochs, two buffers.

    Layers of one layout share it if they are launched one after another on one stream.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.words = torch.zeros(layout.workspace_words, dtype=torch.int32, device=device)

    def check(self) -> None:
        """Wait for enqueued launches. Raises: KernelError if one has aborted since the last `reset`."""
        if int(self.words[0]):
            raise KernelError("a block of the persistent GRU kernel timed out waiting for the others")

    def reset(self) -> None:
        """Clear the failure and all exchanged states; no launch may be in flight."""
        self.words.zero_()


class PersistentGru:
    """The recurrence of one GRU layer: U (3H, H) fp16 on the chip for a chunk of frames; order of gates r, z, n."""

    def __init__(
        self, weights: Tensor, bias: Tensor, device: torch.device | str = "cuda", workspace: Workspace | None = None
    ) -> None:
        self.device = torch.device(device)
        self.layout: Layout = layout_of(weights.shape[1])
        self.load(weights, bias)
        self.workspace = workspace or Workspace(self.layout, self.device)
        if self.workspace.layout != self.layout:
            raise ValueError(f"the workspace is for {self.workspace.layout}, the layer has {self.layout}")
        defines = self.layout.defines() | {"SPIN_LIMIT": SPIN_LIMIT, "POLL_DELAY": POLL_DELAY}
        self.kernel = Kernel(SOURCE, "persistent_gru", defines, self.device, self.layout.shared_bytes)

    def load(self, weights: Tensor, bias: Tensor) -> None:
        """Replace the weights (3H, H) and bias (3H,) for later launches on torch's current stream."""
        self.weights = pack(weights.detach().to(self.device, torch.float16), self.layout)
        self.bias = bias.detach().to(self.device, torch.float32).contiguous()

    def enqueue(
        self,
        gates: Tensor,
        x_in: Tensor,
        x_out: Tensor,
        slab: Tensor,
        read: Tensor,
        write: Tensor,
        rows: Tensor,
        frames: int,
        error: Tensor | None = None,
        ahead: Sequence[Tensor] = (),
    ) -> None:
        """Run `frames` frames of the first `rows[0]` batch rows, on torch's current stream.

        gates (B, T, 3H) fp16 = W x + b; x_in and x_out (B, T, H) fp16, the layer's input and x_in + h, may be the same;
        slab (capacity + 2, H) fp16: row read[b] is h(0), row write[b] receives h(T), they may be equal; read,
        write (B,) and rows (1,) int32. All contiguous, T = frames, and no row is written twice or read by another.
        A launch that aborts also writes 1 to `error` (1,) int32. Up to two tensors `ahead`, weights of later
        kernels, are prefetched into L2 while the blocks wait for one another.
        """
        assert frames >= 1
        assert gates.shape[0] <= MAX_ROWS
        assert len(ahead) <= 2
        tensors = (self.weights, self.bias, gates, x_in, x_out, slab, read, write, rows, self.workspace.words)
        arguments = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        self.kernel.launch(
            self.layout.blocks,
            32 * WARPS,
            [
                *arguments,
                ctypes.c_int(frames),
                ctypes.c_int(len(read)),
                *range_of(ahead, 0),
                *range_of(ahead, 1),
                ctypes.c_void_p(None if error is None else error.data_ptr()),
            ],
            cooperative=True,
        )

    def check(self) -> None:
        """Wait for enqueued launches. Raises: KernelError if one has aborted."""
        self.workspace.check()


class PersistentGruBackward:
    """The backward pass of the recurrence for layers of one hidden size: U (3H, H) bf16 on the chip for all frames."""

    def __init__(self, hidden: int, device: torch.device | str = "cuda") -> None:
        """Raises: ValueError if there is no layout; KernelError."""
        self.device = torch.device(device)
        self.layout = backward_layout_of(hidden)
        self.workspace = Workspace(self.layout, self.device)
        defines = self.layout.defines() | {"SPIN_LIMIT": SPIN_LIMIT}
        self.kernel = Kernel(BACKWARD_SOURCE, "persistent_gru_backward", defines, self.device, self.layout.shared_bytes)

    def load(self, weights: Tensor) -> None:
        """Replace the weights (3H, H) for later launches on torch's current stream."""
        self.weights = pack_transposed(weights.detach().to(self.device, torch.bfloat16), self.layout)

    def enqueue(self, factors: Tensor, outputs: Tensor, products: Tensor, candidates: Tensor, first: Tensor) -> None:
        """Walk from the last frame to the first, on torch's current stream.

        factors (B, T, 5, H) fp16, see `gru_backward_body.h`; outputs (B, T, H) fp32: gradients of the states by way of
        the layer's outputs. Written: products (B, T, 3H) bf16, gradients of U h + c; candidates (B, T, H) bf16,
        gradients of the candidate's input gate; first (B, H) fp32, gradients of h(0). All contiguous.
        """
        rows, frames = outputs.shape[:2]
        assert frames >= 1
        assert 1 <= rows <= MAX_ROWS
        tensors = (self.weights, factors, outputs, products, candidates, first, self.workspace.words)
        self.kernel.launch(
            self.layout.blocks,
            32 * WARPS,
            [*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_int(frames), ctypes.c_int(rows)],
            cooperative=True,
        )

    def check(self) -> None:
        """Wait for enqueued launches. Raises: KernelError if one has aborted."""
        self.workspace.check()
