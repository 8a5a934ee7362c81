"""Device and precision: resolves `auto` on this machine. Torch is imported only if needed.

So a server with a model in 8-bit arithmetic starts without torch: faster, and with less memory.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from model.errors import PrecisionError, require
from model.machine.device import Device

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""Device files of Linux drivers: NVIDIA, NVIDIA Jetson, Windows Subsystem for Linux, AMD."""


def resolve_device(device: str) -> Device:
    """Resolve auto, cpu or cuda to a device. Raises: PrecisionError if it is not available."""
    if device == "cpu" or (device == "auto" and not _torch_sees_a_gpu()):
        return Device("cpu")
    if device not in ("auto", "cuda"):
        raise PrecisionError(f"device must be auto, cpu or cuda, not {device!r}")
    require("torch", "torch", "--device cuda")
    if not _torch_sees_a_gpu():
        raise PrecisionError("device cuda: torch finds no GPU; use --device cpu, or install a CUDA build of torch")
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


def resolve_precision(precision: str, device: Device, *, quantized: bool) -> str:
    """Resolve auto to the fastest precision here; `quantized`: whether the checkpoint has 8-bit weights.

    On a GPU fp16. On a CPU int8 where the weights and byte products are there: of all batch sizes, on processors with
    AVX2, VNNI or more, it is the fastest (model/LOG.md). Else bf16 where the CPU multiplies it natively, else fp32.
    Raises: MissingPackage; PrecisionError for a precision that the device or
    the processor lacks.
    """
    if precision == "auto":
        return _fastest(device, quantized=quantized)
    if precision not in PRECISIONS:
        raise PrecisionError(f"precision must be one of auto, {', '.join(PRECISIONS)}, not {precision!r}")
    if precision == "fp16" and device.type == "cpu":
        raise PrecisionError("precision fp16 needs a GPU; on a CPU use --precision int8, fp32 or auto")
    if precision == "int8" and device.type != "cpu":
        raise PrecisionError("precision int8 needs a CPU; on a GPU use --precision fp16 or bf16")
    if precision != "int8":
        require("torch", "torch", f"--precision {precision}")
    if precision == "bf16" and device.type == "cpu" and not multiplies_bf16():
        raise PrecisionError(
            "precision bf16 needs a processor with AVX-512 or avx_ne_convert, best with avx512_bf16 or amx, "
            "and oneDNN finds none of them here; use --precision int8, fp32 or auto"
        )
    return precision


def _fastest(device: Device, *, quantized: bool) -> str:
    if device.type == "cuda":
        return "fp16"
    from model.machine.instructions import instruction_set  # needs numba, which may be missing on a GPU host

    if quantized and (instruction_set() != "portable" or not _has_torch()):
        return "int8"
    require("torch", "torch", "a model without 8-bit weights")
    return "bf16" if native_bf16() else "fp32"


def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU, natively or through float32; with AVX2 only it does not.

    Builds of torch without oneDNN do so on any CPU.
    """
    import torch

    return not torch._C._has_mkldnn or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def native_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16 products (avx512_bf16 or amx), and oneDNN may use them."""
    import torch

    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(has_instructions) and multiplies_bf16()
