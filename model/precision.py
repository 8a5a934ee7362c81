"""Device and precision: the choice of `auto` on this machine, and casting a network.

Features, log-softmax and decoding stay in float32 whatever the precision of the products.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.errors import PrecisionError
from model.network import Network

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.bfloat16}


def resolve_device(device: str) -> torch.device:
    """Turn auto, cpu or cuda into a device. Raises: PrecisionError if it is not available."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise PrecisionError(f"device {device!r} is not one of auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise PrecisionError(
            "device cuda was asked for and torch sees no GPU: use --device cpu, or install a CUDA build"
        )
    return torch.device(device)


def resolve_precision(precision: str, device: torch.device) -> str:
    """Turn auto into fp16 on a GPU, bf16 on a CPU that multiplies it natively, fp32 elsewhere. Raises: PrecisionError.

    int8 is never chosen: on a CPU with native bf16 it wins at one stream only (see ARCHITECTURE.md).
    """
    if precision == "auto":
        if device.type == "cuda":
            return "fp16"
        return "bf16" if native_bf16() else "fp32"
    if precision not in DTYPES:
        raise PrecisionError(f"precision {precision!r} is not one of auto, {', '.join(DTYPES)}")
    if precision == "fp16" and device.type == "cpu":
        raise PrecisionError("fp16 needs a GPU: on a CPU use --precision fp32 or auto")
    if precision == "int8" and device.type != "cpu":
        raise PrecisionError("int8 weights are made for CPUs: on a GPU use fp16 or bf16")
    if DTYPES[precision] == torch.bfloat16 and device.type == "cpu" and not multiplies_bf16():
        raise PrecisionError(
            f"precision {precision} needs a processor with AVX-512 or avx_ne_convert, best with avx512_bf16 or amx, "
            "and oneDNN finds none of them here: use --precision fp32 or auto"
        )
    return precision


def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU, natively or by way of float32; with AVX2 alone it does not.

    Builds of torch without oneDNN multiply it on any CPU. int8 depends on it too: its products are with bf16.
    """
    return not torch._C._has_mkldnn or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def native_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16 products (avx512_bf16 or amx), and oneDNN may use them."""
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(has_instructions) and multiplies_bf16()


def cast(network: Network, precision: str, device: torch.device) -> Network:
    """Move a network to its device and precision, in place; the features stay in float32."""
    network.to(device=device, dtype=DTYPES[precision])
    network.features.to(dtype=torch.float32)
    if precision == "int8":
        for module in list(network.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear) and child is not network.head:
                    setattr(module, name, Int8Linear(child))
    return network


class Int8Linear(nn.Module):
    """Weights in 8 bits with one scale an output unit, products in bf16: a row depends on no other row.

    Dynamic quantisation of the activations would be faster and is not used: its scale is taken over the whole batch, so
    a stream's transcript would depend on its peers.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, full: nn.Linear) -> None:
        super().__init__()
        weight = full.weight.detach().to(torch.float32)  # (out, in)
        scale = weight.abs().amax(dim=1).clamp_min(1e-12) / 127  # (out,)
        self.register_buffer("weight", torch.round(weight / scale[:, None]).to(torch.int8))
        self.register_buffer("scale", scale.to(full.weight.dtype))
        self.register_buffer("bias", full.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) -> (…, out), both bf16."""
        rows = x.reshape(-1, x.shape[-1])
        return (torch._weight_int8pack_mm(rows, self.weight, self.scale) + self.bias).view(*x.shape[:-1], -1)
