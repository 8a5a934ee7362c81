"""Post-training quantization: from a network and some speech to integers and scales, without gradients.

For each product: equalize its input channels where this is free, fit the range of the inputs, round the weights so that
later columns compensate for the errors of earlier ones, and correct the bias by the mean error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.checkpoint import products_of
from model.config import PAIRS
from model.int8.quantized import QuantizedNetwork, QuantizedProduct
from model.torch_network.network import Network
from tutti_asr_lab.training.quantization.calibration import best_range, in_rows, inputs_of, quantized_inputs
from tutti_asr_lab.training.quantization.rounding import nearest, round_compensated, row_scales

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Exponents of a channel's range moved into the weights. Source: Xiao et al. 2022, SmoothQuant, arXiv:2211.10438."""
QUANTILE = 0.999  # quantile of a channel's magnitudes that counts as its range
_LEAST = 1e-5
_JUDGED = 2_048  # inputs for the comparison of strengths


def quantize(
    network: Network, recordings: Sequence[NDArray[np.int16]], announce: Callable[[str], None] = lambda _: None
) -> QuantizedNetwork:
    """Quantize a float32 network with the ranges of its activations on the recordings, (S,) int16 each.

    Deterministic; the given network is not changed.
    """
    pcm = in_rows(recordings, network.config)
    folded = copy.deepcopy(network).float().cpu().eval()
    equalize(folded, inputs_of(folded, pcm))
    inputs = inputs_of(folded, pcm)
    modules = products_of(network.config)
    products: dict[str, QuantizedProduct] = {}
    for number, (name, module) in enumerate(modules.items(), 1):
        products[name] = quantize_product(_linear(folded, module), inputs[name])
        announce(f"rounded {name}, {number} of {len(modules)}")
    inside = tuple(f"{module}." for module in modules.values())
    tensors = {
        name: tensor.detach().numpy().copy()
        for name, tensor in folded.state_dict().items()
        if not name.startswith(inside)
    }
    return QuantizedNetwork(network.config, products, tensors)


@torch.no_grad()
def quantize_product(linear: nn.Linear, x: Tensor) -> QuantizedProduct:
    """Quantize one product, given its inputs x (N, in)."""
    weight = linear.weight.double()
    input_scale, input_zero = best_range(x, weight.square().sum(0))
    seen = quantized_inputs(x, input_scale, input_zero).double()
    moments = seen.T @ seen / len(seen)  # (in, in)
    scale = row_scales(weight, moments).float()
    integers = round_compensated(weight, scale.double(), moments)
    rounded = integers * scale.double()[:, None]
    missed = weight @ x.double().mean(0) - rounded @ seen.mean(0)  # (out,): mean error
    return QuantizedProduct(
        weight=integers.numpy().astype(np.int8),
        scale=scale.numpy(),
        bias=(linear.bias.double() + missed).float().numpy(),
        input_scale=input_scale,
        input_zero=input_zero,
    )


@torch.no_grad()
def equalize(network: Network, inputs: dict[str, Tensor]) -> None:
    """Equalize the ranges of a product's input channels, in place, where a preceding gain and bias can absorb it.

    These are the layer norms before the GRUs and the dense layer, and the scale of the features, whose bias stays
    because the features of a new stream are zeros. The network's function does not change.
    """
    for i, norm in enumerate(network.norms):
        fold_norm(norm, network.grus[i].input, inputs[f"gru{i}.input"])  # type: ignore[arg-type]
    fold_norm(network.norm, network.dense, inputs["dense"])
    product = network.conv0.product
    frames = 2 * PAIRS
    x = inputs["conv0"].view(-1, product.in_features // frames)  # (N * frames, F)
    by_frame = product.weight.view(product.out_features * frames, -1)  # (out * frames, F)
    divisor = channel_divisor(inputs["conv0"], product.weight, ranges(x), by_frame.abs().amax(0))
    network.features.scale.div_(divisor)
    product.weight.mul_(divisor.repeat(frames))


def fold_norm(norm: nn.LayerNorm, product: nn.Linear, x: Tensor) -> None:
    """Equalize the channels between a layer norm and a product with inputs x (N, in), in place."""
    center = x.mean(0)  # (in,)
    product.bias.add_(product.weight @ center)
    divisor = channel_divisor(x - center, product.weight, ranges(x - center), product.weight.abs().amax(0))
    norm.weight.div_(divisor)
    norm.bias.copy_((norm.bias - center) / divisor)
    product.weight.mul_(divisor)


def ranges(x: Tensor) -> Tensor:
    """Range of each channel of x (N, C): (C,)."""
    place = min(len(x), max(1, round(QUANTILE * len(x))))
    return x.abs().kthvalue(place, dim=0).values.clamp_min(_LEAST)


def channel_divisor(x: Tensor, weight: Tensor, activations: Tensor, weights: Tensor) -> Tensor:
    """Divisor of each channel, (C,), by the one of `STRENGTHS` with the least error of the quantized x weight^T.

    x (N, in) with in a multiple of C; `activations` and `weights` are the ranges of the channels, (C,).
    """
    x = x[:: max(1, len(x) // _JUDGED)]
    repeats = x.shape[1] // len(activations)
    exact = x @ weight.T  # (N, out)
    best, least = torch.ones_like(activations), torch.inf
    for strength in STRENGTHS:
        divisor = activations**strength / weights.clamp_min(_LEAST) ** (1 - strength)
        divisor = divisor / divisor.log().mean().exp()
        if strength == 0:
            divisor = torch.ones_like(divisor)
        every = divisor.repeat(repeats)  # (in,)
        changed = (weight * every).double()
        scale, zero = best_range(x / every, changed.square().sum(0))
        seen = quantized_inputs(x / every, scale, zero)
        rows = row_scales(changed, torch.diag(seen.double().square().mean(0)))
        rounded = (nearest(changed, rows) * rows[:, None]).float()
        found = float((seen @ rounded.T - exact).square().sum())
        if found < least:
            best, least = divisor, found
    return best


def _linear(network: Network, module: str) -> nn.Linear:
    found = network.get_submodule(module)
    assert isinstance(found, nn.Linear)
    return found
