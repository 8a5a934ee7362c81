"""Simulation of a quantized network in torch, with gradients, for evaluation and for fine-tuning.

Integers are stored as float32, where their sums are exact below 2**24. Rounding has the gradient of the identity
(straight-through; Bengio et al. 2013), which gives scales the gradient of Esser et al. 2020 (LSQ, arXiv:1902.08153).
Elementwise operations outside the products are torch's, so they equal the compiled step only up to float rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.checkpoint import products_of
from model.int8.quantized import LARGEST_INPUT, LARGEST_WEIGHT, QuantizedNetwork, QuantizedProduct
from model.torch_network.network import GRULayer, Lookahead, Network, Scan


def rounded(x: Tensor) -> Tensor:
    """Nearest integers, half to even, with the gradient of the identity."""
    return x + (x.detach().round() - x.detach())


class SimulatedProduct(nn.Module):
    """Product of x (…, in) to (…, out) as defined by `QuantizedProduct`.

    `weight` has the integers, as floats that fine-tuning may move between integers. `drift` is the natural logarithm of
    the factor by which fine-tuning has changed the input scale.
    """

    scale: Tensor
    input_scale: Tensor

    def __init__(self, product: QuantizedProduct) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(product.weight.astype(np.float32)))  # (out, in)
        self.bias = nn.Parameter(torch.from_numpy(product.bias.copy()))
        self.drift = nn.Parameter(torch.zeros(()))
        self.register_buffer("scale", torch.from_numpy(product.scale.copy()))
        self.register_buffer("input_scale", torch.tensor(product.input_scale))
        self.input_zero = product.input_zero
        self._held: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Quantize x, multiply the integers, scale, add the bias."""
        weight = self.integers() if self._held is None else self._held
        return functional.linear(self.entering(x), weight) * (self.scale * self.step()) + self.bias

    def step(self) -> Tensor:
        """Input scale, ()."""
        return self.input_scale * self.drift.exp()

    def entering(self, x: Tensor) -> Tensor:
        """Integers of x minus the zero point."""
        q = rounded(x * (1 / self.step())) + self.input_zero
        return q.clamp(0, LARGEST_INPUT) - self.input_zero

    def integers(self) -> Tensor:
        """Integer weights (out, in)."""
        return rounded(self.weight).clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context in which the weights are rounded only once."""
        self._held = self.integers()
        try:
            yield
        finally:
            self._held = None

    @torch.no_grad()
    def numbers(self) -> QuantizedProduct:
        """Quantized product with the current parameters."""
        return QuantizedProduct(
            weight=self.integers().cpu().numpy().astype(np.int8),
            scale=self.scale.cpu().numpy().copy(),
            bias=self.bias.cpu().numpy().copy(),
            input_scale=float(self.step()),
            input_zero=self.input_zero,
        )


class SimulatedGRU(GRULayer):
    """GRU whose state is quantized before each recurrent product.

    Its scan has no gradient for the input scale of that product, because the range of a state is known.
    """

    recurrent: SimulatedProduct  # type: ignore[assignment]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, T, H) and the next state (B, H), from x (B, T, H) and the state before it (B, H)."""
        recurrent = self.recurrent
        if not torch.is_grad_enabled():
            with recurrent.held():
                return self.steps(x, state)
        gates = self.input(x.transpose(0, 1))  # (T, B, 3H)
        weight = recurrent.integers() * recurrent.scale[:, None]

        def entering(hidden: Tensor) -> Tensor:
            return recurrent.entering(hidden) * recurrent.step()

        states: Tensor = Scan.apply(gates, weight, recurrent.bias, state, entering)  # type: ignore[no-untyped-call]
        return states.transpose(0, 1), states[-1]


class SimulatedLookahead(Lookahead):
    """Lookahead convolution over values rounded to bfloat16, half to even."""

    def forward(self, x: Tensor, waiting: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, T, H) and pending frames, from x (B, T, H) and earlier frames without output (B, frames, H)."""
        return super().forward(x + (x.detach().bfloat16().float() - x.detach()), waiting)


class SimulatedNetwork(Network):
    """Network with the weights, scales and rounding of a quantized one."""

    def __init__(self, quantized: QuantizedNetwork) -> None:
        config = quantized.config
        super().__init__(config)
        self.grus = nn.ModuleList(SimulatedGRU(config.hidden, config.hidden) for _ in range(config.layers))
        self.lookahead = SimulatedLookahead(config.hidden, config.lookahead)
        tensors = {name: torch.from_numpy(tensor.copy()) for name, tensor in quantized.tensors.items()}
        self.load_state_dict(tensors, strict=False)
        self._modules_of = products_of(config)
        for name, module in self._modules_of.items():
            parent, _, child = module.rpartition(".")
            setattr(self.get_submodule(parent), child, SimulatedProduct(quantized.products[name]))

    def numbers(self) -> QuantizedNetwork:
        """Quantized network with the current parameters."""
        products: dict[str, QuantizedProduct] = {}
        for name, module in self._modules_of.items():
            product = self.get_submodule(module)
            assert isinstance(product, SimulatedProduct)
            products[name] = product.numbers()
        inside = tuple(f"{module}." for module in self._modules_of.values())
        tensors = {
            name: tensor.detach().cpu().numpy().copy()
            for name, tensor in self.state_dict().items()
            if not name.startswith(inside)
        }
        return QuantizedNetwork(self.config, products, tensors)
