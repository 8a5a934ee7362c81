"""Device and precision: the choice of `auto` on this machine. Torch is imported only where it has to be asked.

So a server whose model computes in 8-bit arithmetic starts without it: sooner, and in less memory.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from model.description import Device, Place
from model.errors import PrecisionError, require

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""Of drivers on Linux: NVIDIA's, that of its boards with one memory, that of Windows' subsystem, AMD's."""


def resolve_device(device: str) -> Device:
    """Turn auto, cpu or cuda into a device. Raises: PrecisionError if it is not available."""
    if device == "cpu" or (device == "auto" and not _torch_sees_a_gpu()):
        return Device("cpu")
    if device not in ("auto", "cuda"):
        raise PrecisionError(f"device {device!r} is not one of auto, cpu, cuda")
    require("torch", "torch", "--device cuda")
    if not _torch_sees_a_gpu():
        raise PrecisionError(
            "device cuda was asked for and torch sees no GPU: use --device cpu, or install a CUDA build"
        )
    return Device("cuda")


def _has_torch() -> bool:
    return find_spec("torch") is not None


def _torch_sees_a_gpu() -> bool:
    if sys.platform == "linux" and not any(Path(each).exists() for each in _GPU_DEVICES):
        return False
    if not _has_torch():
        return False
    import torch

    return torch.cuda.is_available()


def resolve_precision(precision: str, device: Place, *, quantized: bool, cpu_fp16: bool = False) -> str:
    """Turn auto into the fastest precision here; `quantized` says whether the checkpoint has 8-bit weights.

    On a GPU fp16. On a CPU int8 where the weights and byte products are there: of all batch sizes, on processors with
    AVX2, VNNI or more, it is the fastest (model/LOG.md). Else bf16 where the CPU multiplies it natively, else fp32.
    `cpu_fp16` allows fp16 on a CPU, in tests. Raises: PrecisionError for a precision that the device or the processor
    lacks.
    """
    if precision == "auto":
        return _fastest(device, quantized=quantized)
    if precision not in PRECISIONS:
        raise PrecisionError(f"precision {precision!r} is not one of auto, {', '.join(PRECISIONS)}")
    if precision == "fp16" and device.type == "cpu" and not cpu_fp16:
        raise PrecisionError("fp16 needs a GPU: on a CPU use --precision int8, fp32 or auto")
    if precision == "int8" and device.type != "cpu":
        raise PrecisionError("int8 is computed on CPUs: on a GPU use --precision fp16 or bf16")
    if precision != "int8":
        require("torch", "torch", f"--precision {precision}")
    if precision == "bf16" and device.type == "cpu" and not multiplies_bf16():
        raise PrecisionError(
            "precision bf16 needs a processor with AVX-512 or avx_ne_convert, best with avx512_bf16 or amx, "
            "and oneDNN finds none of them here: use --precision int8, fp32 or auto"
        )
    return precision


def _fastest(device: Place, *, quantized: bool) -> str:
    if device.type == "cuda":
        return "fp16"
    from model.machine.instructions import instruction_set  # needs numba, which a GPU host may lack

    if quantized and (instruction_set() != "portable" or not _has_torch()):
        return "int8"
    return "bf16" if native_bf16() else "fp32"


def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU, natively or by way of float32; with AVX2 alone it does not.

    Builds of torch without oneDNN multiply it on any CPU.
    """
    import torch

    return not torch._C._has_mkldnn or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def native_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16 products (avx512_bf16 or amx), and oneDNN may use them."""
    import torch

    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(has_instructions) and multiplies_bf16()
