"""Recurrence of GRU layers in training by the persistent kernels, as a differentiable function of torch.

The kernels walk through the frames. Everything that is not sequential is a product or element-wise code of torch for
all frames at once: the gates are computed again from the states instead of being stored, and the gradient of U is one
product over all frames and rows at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.torch_network.network import gate_factors
from tutti_asr_lab.gpu.pack import MAX_ROWS
from tutti_asr_lab.gpu.persistent import PersistentGru, PersistentGruBackward


class Kernels(Protocol):
    """Both directions for any number of rows."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of gates and states."""

    def forward(self, gates: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
        """Gates (B, T, 3H), U (3H, H), its bias (3H), h(0) (B, H) -> states (B, T, H)."""

    def backward(self, factors: Tensor, outputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Factors (B, T, 5, H), output gradients (B, T, H) -> gradients of U h + c, of the input of n, of h(0)."""

    def check(self) -> None:
        """Wait for enqueued launches. Raises: KernelError if one has aborted."""


@dataclass(frozen=True, slots=True)
class LaunchedKernels:
    """The persistent kernels, launched for up to `MAX_ROWS` rows at a time."""

    forward_pass: PersistentGru
    backward_pass: PersistentGruBackward
    dtype: torch.dtype = torch.float16

    def forward(self, gates: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
        """See `Kernels`; gates and h(0) in fp16."""
        self.forward_pass.load(weight, bias)
        states = first.new_zeros(len(gates), gates.shape[1], first.shape[1])
        slab, index = first.clone(), torch.arange(MAX_ROWS, dtype=torch.int32, device=first.device)
        for part in (slice(at, at + MAX_ROWS) for at in range(0, len(gates), MAX_ROWS)):
            own = index[: len(gates[part])]
            count = torch.full((1,), len(own), dtype=torch.int32, device=first.device)
            # The kernel adds the states to what stands in the output.
            arguments = (gates[part], states[part], states[part], slab[part], own, own, count)
            self.forward_pass.enqueue(*arguments, frames=gates.shape[1])
        return states

    def backward(self, factors: Tensor, outputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernels`; factors in fp16, gradients of gates in bf16, others in fp32."""
        self.backward_pass.load(weight)
        outputs = outputs.float().contiguous()
        rows, frames, hidden = outputs.shape
        products = outputs.new_empty(rows, frames, 3 * hidden, dtype=torch.bfloat16)
        candidates = outputs.new_empty(rows, frames, hidden, dtype=torch.bfloat16)
        first = outputs.new_empty(rows, hidden)
        for part in (slice(at, at + MAX_ROWS) for at in range(0, rows, MAX_ROWS)):
            self.backward_pass.enqueue(factors[part], outputs[part], products[part], candidates[part], first[part])
        return products, candidates, first

    def check(self) -> None:
        """See `Kernels`."""
        self.forward_pass.check()
        self.backward_pass.check()


class PersistentScan(torch.autograd.Function):
    """Recurrence of a GRU over whole utterances, batch-major, by `Kernels`."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, first: Tensor, kernels: Kernels) -> Tensor:
        """gates (B, T, 3H) = Wx + b, weight (3H, H), bias (3H), first state (B, H) -> states (B, T, H)."""
        ctx.kernels, ctx.dtypes = kernels, (gates.dtype, first.dtype)
        own, start = gates.to(kernels.dtype).contiguous(), first.to(kernels.dtype).contiguous()
        with torch.autocast(gates.device.type, enabled=False):  # every dtype here is the kernels'
            states = kernels.forward(own, weight, bias, start)
        ctx.save_for_backward(own, states, start, weight, bias)
        return states.to(gates.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        """Backpropagate through time, then compute the gradients of U and its bias from all frames at once."""
        gates, states, start, weight, bias = ctx.saved_tensors
        width = weight.shape[1]
        with torch.autocast(grad.device.type, enabled=False):
            previous = torch.cat([start[:, None], states[:, :-1]], dim=1)  # (B, T, H)
            factors = factors_of(gates, previous, weight, bias)
            products, candidates, first = ctx.kernels.backward(factors, grad, weight)
            flat = products.view(-1, 3 * width)
            grad_weight = flat.t() @ previous.view(-1, width).to(flat.dtype)
        grad_bias = flat.sum(0, dtype=bias.dtype)
        products[..., 2 * width :] = candidates  # the input side of the candidate is not scaled by the reset gate
        gates_dtype, first_dtype = ctx.dtypes
        return products.to(gates_dtype), grad_weight.to(weight.dtype), grad_bias, first.to(first_dtype), None


def factors_of(gates: Tensor, previous: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Factors (B, T, 5, H) of the backward pass, in the dtype of the gates: `gate_factors`, then the update gate.

    gates (B, T, 3H), `previous` (B, T, H): the state before each frame. Computed in float32, or wider.
    """
    width, wide = weight.shape[1], torch.promote_types(gates.dtype, torch.float32)
    product = previous.view(-1, width) @ weight.to(previous.dtype).t()  # (B T, 3H)
    entering, recurrent = gates.to(wide), product.view_as(gates).to(wide) + bias.to(wide)
    both = torch.sigmoid(entering[..., : 2 * width] + recurrent[..., : 2 * width])
    reset, update, recurrent = both[..., :width], both[..., width:], recurrent[..., 2 * width :]
    candidate = torch.tanh(entering[..., 2 * width :] + reset * recurrent)
    factors = gate_factors(previous.to(wide), reset, update, candidate, recurrent)
    return torch.stack([*factors, update], dim=2).to(gates.dtype)
