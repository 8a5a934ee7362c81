"""Device and precision: the choice of `auto` on this machine, and casting a network.

Features, log-softmax and decoding stay in float32 whatever the precision of the products.
"""

from __future__ import annotations

import torch

from model.errors import PrecisionError
from model.torch_network.network import Network

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions that torch computes; int8 is compiled (`model.int8`)."""
PRECISIONS = (*DTYPES, "int8")


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


def resolve_precision(precision: str, device: torch.device, *, quantized: bool, cpu_fp16: bool = False) -> str:
    """Turn auto into the fastest precision here; `quantized` says whether the checkpoint has 8-bit weights.

    On a GPU fp16. On a CPU int8 where the weights and byte products are there: of all batch sizes, on processors with
    AVX2, VNNI or more, it is the fastest (model/LOG.md). Else bf16 where the CPU multiplies it natively, else fp32.
    `cpu_fp16` allows fp16 on a CPU, in tests. Raises: PrecisionError for a precision that the device or the processor
    lacks.
    """
    if precision == "auto":
        if device.type == "cuda":
            return "fp16"
        from model.instructions import instruction_set  # needs numba, which a GPU host may lack

        if quantized and instruction_set() != "portable":
            return "int8"
        return "bf16" if native_bf16() else "fp32"
    if precision not in PRECISIONS:
        raise PrecisionError(f"precision {precision!r} is not one of auto, {', '.join(PRECISIONS)}")
    if precision == "fp16" and device.type == "cpu" and not cpu_fp16:
        raise PrecisionError("fp16 needs a GPU: on a CPU use --precision int8, fp32 or auto")
    if precision == "int8" and device.type != "cpu":
        raise PrecisionError("int8 is computed on CPUs: on a GPU use --precision fp16 or bf16")
    if precision == "bf16" and device.type == "cpu" and not multiplies_bf16():
        raise PrecisionError(
            "precision bf16 needs a processor with AVX-512 or avx_ne_convert, best with avx512_bf16 or amx, "
            "and oneDNN finds none of them here: use --precision int8, fp32 or auto"
        )
    return precision


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
