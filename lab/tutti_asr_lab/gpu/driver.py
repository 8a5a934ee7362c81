"""CUDA C++ compiled by NVRTC and launched through the driver, by ctypes: no compiler, header or binding is needed.

Knows libraries, modules and launches; nothing of what a kernel computes.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from model.errors import ModelError

SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
COOPERATIVE = 2  # CUlaunchAttributeID
PROGRAMMATIC_STREAM_SERIALIZATION = 6


class KernelError(ModelError):
    """A kernel cannot be compiled, loaded or launched, or reported a failure."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id padded to 8 bytes, and a value of 64 bytes."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """Return the NVRTC library, from torch's CUDA libraries or the loader's path.

    Raises: KernelError if there is none.
    """
    for place in [*_beside_torch(), *SONAMES]:
        try:
            for builtins in sorted(Path(place).parent.glob("libnvrtc-builtins.so.*")) if "/" in place else []:
                ctypes.CDLL(str(builtins))  # NVRTC opens it by its bare name, so it must be loaded
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise KernelError("NVRTC is not installed: pip install nvidia-cuda-nvrtc, or install a CUDA build of torch")


def _beside_torch() -> list[str]:
    """Return the paths of NVRTC in NVIDIA's packages that torch depends on, newest first."""
    sites = {Path(torch.__file__).parents[1]}
    packages = importlib.util.find_spec("nvidia")
    if packages is not None:
        sites |= {Path(path).parent for path in packages.submodule_search_locations or ()}
    folders = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib")
    return [str(site / folder / name) for name in SONAMES for site in sorted(sites) for folder in folders]


@functools.cache
def _cuda() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelError("libcuda.so.1 is missing: install NVIDIA's driver") from error


@functools.cache
def compile_cubin(source: Path, arch: str, defines: tuple[tuple[str, int], ...]) -> bytes:
    """Compile a source file for an architecture (`sm_90a`), without fused multiply-add.

    Raises: KernelError with the compiler's log.
    """
    library = nvrtc()
    program = ctypes.c_void_p()
    text = source.read_bytes()
    _nvrtc_check(library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None))
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--fmad=false", "--device-as-default-execution-space"]
    options += [f"--include-path={source.parent}", *(f"-D{name}={value}" for name, value in defines)]
    try:
        encoded = [option.encode() for option in options]
        status = library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        if status:
            raise KernelError(f"{source.name} does not compile for {arch}:\n{_log(library, program)}")
        size = ctypes.c_size_t()
        _nvrtc_check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        _nvrtc_check(library.nvrtcGetCUBIN(program, cubin))
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc_check(status: int) -> None:
    if status:
        library = nvrtc()
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise KernelError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _nvrtc_check(library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    _nvrtc_check(library.nvrtcGetProgramLog(program, log))
    return log.value.decode(errors="replace")


def _check(status: int) -> None:
    """Check a status of the driver. Raises: KernelError with its name."""
    if status:
        name = ctypes.c_char_p()
        _cuda().cuGetErrorString(status, ctypes.byref(name))
        raise KernelError(f"CUDA driver: {(name.value or b'unknown error').decode()} ({status})")


def arch_of(device: torch.device) -> str:
    """Return the architecture to compile for: `sm_90a` on an H100 or H200, else `sm_XX`."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if (major, minor) == (9, 0) else ''}"


class Kernel:
    """One entry point of a compiled source, loaded into the context of a device."""

    def __init__(
        self, source: Path, entry: str, defines: Mapping[str, int], device: torch.device, shared_bytes: int = 0
    ) -> None:
        torch.cuda.current_stream(device).synchronize()  # creates torch's context of the device if there is none
        self.device, self.shared_bytes = device, shared_bytes
        self._cubin = compile_cubin(source, arch_of(device), tuple(sorted(defines.items())))
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            _check(_cuda().cuModuleLoadData(ctypes.byref(self._module), self._cubin))
            _check(_cuda().cuModuleGetFunction(ctypes.byref(self._function), self._module, entry.encode()))
            if shared_bytes:
                _check(_cuda().cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes))

    def launch(
        self, blocks: int, threads: int, arguments: Sequence[Any], *, cooperative: bool = False, early: bool = False
    ) -> None:
        """Enqueue on torch's current stream of the device; `arguments` are ctypes values, copied by the driver.

        A cooperative launch fails if not all blocks can be resident at once. An early one may start before the end of
        the previous kernel, for which the kernel waits itself (`griddepcontrol.wait`).
        """
        stream = torch.cuda.current_stream(self.device).cuda_stream
        wanted = [COOPERATIVE] * cooperative + [PROGRAMMATIC_STREAM_SERIALIZATION] * early
        attributes = (_Attribute * len(wanted))(*(_Attribute(id=which) for which in wanted))
        for attribute in attributes:
            attribute.value[0] = 1
        config = _Config(
            grid=(blocks, 1, 1),
            block=(threads, 1, 1),
            shared_bytes=self.shared_bytes,
            stream=stream,
            attributes=attributes,
            attribute_count=len(wanted),
        )
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        _check(_cuda().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None))
