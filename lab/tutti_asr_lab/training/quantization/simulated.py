"""Simulation of a quantized network in torch, without gradients, which evaluates whole recordings.

Integers are stored as float32, where their sums are exact below 2**24. Elementwise operations outside the products are
torch's, so they equal the compiled step only up to float rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.checkpoint import products_of
from model.int8.quantized import LARGEST_INPUT, QuantizedNetwork, QuantizedProduct
from model.torch_network.network import Lookahead, Network


class SimulatedProduct(nn.Module):
    """Product of x (…, in) to (…, out) as defined by `QuantizedProduct`."""

    weight: Tensor
    bias: Tensor
    scale: Tensor

    def __init__(self, product: QuantizedProduct) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(product.weight.astype(np.float32)))  # (out, in)
        self.register_buffer("bias", torch.from_numpy(product.bias.copy()))
        self.register_buffer("scale", torch.from_numpy(product.scale * np.float32(product.input_scale)))
        self.inverse = float(1 / np.float32(product.input_scale))
        self.input_zero = product.input_zero

    def forward(self, x: Tensor) -> Tensor:
        """Quantize x, multiply the integers, scale, add the bias."""
        q = (x * self.inverse).round().add(self.input_zero).clamp(0, LARGEST_INPUT) - self.input_zero
        return functional.linear(q, self.weight) * self.scale + self.bias


class SimulatedLookahead(Lookahead):
    """Lookahead convolution over values rounded to bfloat16, half to even."""

    def forward(self, x: Tensor, waiting: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, T, H) and pending frames, from x (B, T, H) and earlier frames without output (B, frames, H)."""
        return super().forward(x.bfloat16().float(), waiting)


class SimulatedNetwork(Network):
    """Network with the weights, scales and rounding of a quantized one."""

    def __init__(self, quantized: QuantizedNetwork) -> None:
        config = quantized.config
        super().__init__(config)
        self.lookahead = SimulatedLookahead(config.hidden, config.lookahead)
        tensors = {name: torch.from_numpy(tensor.copy()) for name, tensor in quantized.tensors.items()}
        self.load_state_dict(tensors, strict=False)
        for name, module in products_of(config).items():
            parent, _, child = module.rpartition(".")
            setattr(self.get_submodule(parent), child, SimulatedProduct(quantized.products[name]))
        self.eval()

    forward = torch.no_grad()(Network.forward)  # without gradients, the recurrence multiplies by integers
