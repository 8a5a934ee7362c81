"""Emulation of the persistent GRU kernel's backward pass, wider references, and both kernels for training."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tests.lab.gpu.gru_emulation import DONE, Layer, Schedule, build, schedule
from tutti_asr_lab.gpu.driver import KernelError
from tutti_asr_lab.gpu.pack import BackwardLayout, Layout, backward_layout_of, layout_of, pack, pack_transposed
from tutti_asr_lab.gpu.scan import LaunchedKernels


def build_backward(layout: BackwardLayout, folder: Path, **options) -> ctypes.CDLL:
    """Compile the backward pass; options as for `build`."""
    library = build(layout, folder, source="gru_backward_emulated.cpp", **options)
    library.workspace_words.restype = ctypes.c_long
    return library


@dataclass
class EmulatedBackward:
    """Emulated `PersistentGruBackward`: the same `load` and `enqueue`."""

    library: ctypes.CDLL
    layout: BackwardLayout
    when: Schedule = field(default_factory=schedule)
    outcome: int = DONE

    def __post_init__(self):
        self.workspace = torch.zeros(self.layout.workspace_words, dtype=torch.int32)

    def load(self, weights: Tensor) -> None:
        self.weights = pack_transposed(weights.detach().bfloat16(), self.layout)

    def enqueue(self, factors, outputs, products, candidates, first) -> None:
        tensors = (self.weights, factors, outputs, products, candidates, first, self.workspace)
        assert all(t.is_contiguous() for t in tensors)
        rows, frames = outputs.shape[:2]
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        self.outcome = self.library.launch_backward(
            *pointers, ctypes.c_int(frames), ctypes.c_int(rows), ctypes.byref(self.when)
        )

    def check(self) -> None:
        if self.outcome != DONE or int(self.workspace[0]):
            raise KernelError("the emulated backward pass aborted")


@dataclass
class EmulatedForward:
    """Emulated `PersistentGru`: the same `load`, and `enqueue` without prefetches."""

    library: ctypes.CDLL
    layout: Layout

    def __post_init__(self):
        self.layer: Layer | None = None
        self.outcome = DONE

    def load(self, weights: Tensor, bias: Tensor) -> None:
        weights, bias = weights.detach().half(), bias.detach().float().contiguous()
        if self.layer is None:
            self.layer = Layer(self.library, self.layout, weights, bias)
        self.layer.weights, self.layer.bias, self.layer.packed = weights, bias, pack(weights, self.layout)

    def enqueue(self, gates, x_in, x_out, slab, read, write, rows, frames) -> None:  # noqa: PLR0917
        self.outcome = self.layer.launch(gates, x_in, x_out, slab, read, write, rows, frames)

    def check(self) -> None:
        if self.outcome != DONE or self.layer.error:
            raise KernelError("the emulated recurrence aborted")


def emulated_kernels(hidden: int, folder: Path) -> LaunchedKernels:
    """Both kernels for training, under emulation."""
    layout, backward = layout_of(hidden), backward_layout_of(hidden)
    return LaunchedKernels(
        EmulatedForward(build(layout, folder), layout), EmulatedBackward(build_backward(backward, folder), backward)
    )


@dataclass(frozen=True)
class LoopKernels:
    """`tutti_asr_lab.gpu.scan.Kernels` as loops of torch without roundings."""

    dtype: torch.dtype = torch.float64

    def forward(self, gates: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
        width, state, states = weight.shape[1], first, []
        for gate in gates.unbind(1):
            product = state @ weight.t() + bias
            both = torch.sigmoid(gate[:, : 2 * width] + product[:, : 2 * width])
            candidate = torch.tanh(gate[:, 2 * width :] + both[:, :width] * product[:, 2 * width :])
            state = candidate + both[:, width:] * (state - candidate)
            states.append(state)
        return torch.stack(states, dim=1)

    def backward(self, factors: Tensor, outputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return backpropagate(factors, outputs, weight, lambda x: x)

    def check(self) -> None:
        pass


def to_bf16(x: Tensor) -> Tensor:
    """Round to bf16, as gradients of gates are before they are multiplied."""
    return x.float().bfloat16().to(x.dtype)


def backpropagate(factors: Tensor, outputs: Tensor, weight: Tensor, rounded=to_bf16) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass in the dtype of `outputs`: gradients of U h + c, of the candidate's input, and of h(0)."""
    rows, frames, width = outputs.shape
    factors, weight = factors.to(outputs.dtype), rounded(weight.to(outputs.dtype))
    products, candidates = outputs.new_empty(rows, frames, 3 * width), torch.empty_like(outputs)
    carried = torch.zeros_like(outputs[:, 0])
    for t in range(frames - 1, -1, -1):
        grad = carried + outputs[:, t]
        products[:, t] = rounded((factors[:, t, :3] * grad[:, None]).flatten(1))
        candidates[:, t] = rounded(factors[:, t, 3] * grad)
        carried = grad * factors[:, t, 4] + products[:, t] @ weight
    return products, candidates, carried
