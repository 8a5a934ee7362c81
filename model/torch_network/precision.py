"""What torch computes in on this machine, and casting a network to it.

Features, log-softmax and decoding stay in float32 whatever the precision of the products.
"""

from __future__ import annotations

import torch

from model.torch_network.network import Network

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU, natively or by way of float32; with AVX2 alone it does not.

    Builds of torch without oneDNN multiply it on any CPU.
    """
    return not torch._C._has_mkldnn or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def native_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16 products (avx512_bf16 or amx), and oneDNN may use them."""
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(has_instructions) and multiplies_bf16()


def cast(network: Network, precision: str, device: torch.device) -> Network:
    """Move a network to its device and to a precision of torch, in place; the features stay in float32."""
    network.to(device=device, dtype=DTYPES[precision])
    network.features.to(dtype=torch.float32)
    return network
