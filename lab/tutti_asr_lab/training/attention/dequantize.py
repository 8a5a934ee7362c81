"""Floats of a quantized network, from which training can continue: the inverse of `quantize`, but for its rounding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.attention.quantized import QuantizedAttention
from tutti_asr_lab.training.attention.network import AttentionNetwork


@torch.no_grad()
def dequantized(quantized: QuantizedAttention) -> AttentionNetwork:
    """Return a network with the values of the integers as weights.

    Quantization moves scales of channels into the products; of queries, keys and values they are chosen anew here, so
    that their weights are as large as others and one learning rate suits all.
    """
    config = quantized.config
    network = AttentionNetwork(config)
    shapes = {name: parameter.shape for name, parameter in network.state_dict().items()}
    tensors = {name: torch.from_numpy(array) for name, array in quantized.tensors.items()}
    state: dict[str, Tensor] = {name: array for name, array in tensors.items() if not name.endswith(".factors")}
    for name, product in quantized.products.items():
        factor = 2.0 if name.endswith(".outer") else 1.0  # the halves of feed-forward layers are in their weights
        state[f"{name}.weight"] = torch.from_numpy(product.weight) * torch.from_numpy(product.scale * factor)[:, None]
        state[f"{name}.bias"] = torch.from_numpy(product.bias) * factor
    stem = state["stem.weight"].view(config.width, -1, config.mel_bins)
    state["stem.weight"] = stem.transpose(1, 2)
    for block in range(config.blocks):
        _unfold_attention(state, f"blocks.{block}.", tensors[f"blocks.{block}.factors"])
    network.load_state_dict({name: array.reshape(shapes[name]) for name, array in state.items()})
    return network.eval()


def _unfold_attention(state: dict[str, Tensor], prefix: str, factors: Tensor) -> None:
    """Undo `quantize.fold_attention` in place: scores again have the factor 1 / sqrt(channels of a head)."""
    weight, bias = state[f"{prefix}attention_in.weight"], state[f"{prefix}attention_in.bias"]
    width = weight.shape[1]
    channels = width // len(factors)
    scores = (factors * math.sqrt(channels)).sqrt().repeat_interleave(channels)
    queries, keys, values = weight.norm(dim=1).split(width)
    queries, keys = queries * scores, keys * scores
    balance = (keys / queries).sqrt()
    units = values / torch.cat([queries, keys]).mean()
    rows = torch.cat([scores * balance, scores / balance, 1 / units])
    state[f"{prefix}attention_in.weight"], state[f"{prefix}attention_in.bias"] = weight * rows[:, None], bias * rows
    state[f"{prefix}attention_out.weight"] = state[f"{prefix}attention_out.weight"] * units
