"""Precisions of torch, and casting of a network.

Features, log-softmax and decoding stay in float32 for every precision of the products.
"""

from __future__ import annotations

import torch

from model.torch_network.network import Network

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cast(network: Network, precision: str, device: torch.device) -> Network:
    """Move a network to its device and precision, in place; the features stay in float32."""
    network.to(device=device, dtype=DTYPES[precision])
    network.features.to(dtype=torch.float32)
    return network
