"""Instruction set of compiled code: that of this processor, or a smaller one from the environment.

`ATEN_CPU_CAPABILITY` (torch) and `ONEDNN_MAX_CPU_ISA` (oneDNN) limit these libraries to older processors; here they
also limit the code that numba compiles or that is shipped, so that the whole program runs as on such a machine.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache

from model.machine.compiler import LIBRARY, binding
from model.machine.compiler import config as _config
from model.machine.native import KINDS, InstructionSet, allowed_level

LEVELS = ("x86-64", "x86-64-v3")  # LLVM's names of a processor without and with AVX2, both without AVX-512
WITH_VNNI = ("x86-64-v4", "+avx512vnni")
"""Processor name and features with VNNI for which an image is compiled, in the form of numba's variables."""


def limit_instructions(environment: Mapping[str, str] = os.environ) -> None:
    """Make numba compile for the level set in the environment, if the processor supports it; call it first."""
    level = allowed_level(environment)
    if LIBRARY is None and level is not None and is_x86() and not _config.CPU_NAME:
        _config.CPU_NAME, _config.CPU_FEATURES = LEVELS[min(level, int(_has("avx2")))], ""


@cache
def instruction_set() -> InstructionSet:
    """Return the fastest instructions for 8-bit products available here. Source: measured, model/LOG.md."""
    if LIBRARY is not None:
        return LIBRARY.kind.instructions
    limit_instructions()
    if _config.CPU_NAME:  # limited by `limit_instructions`, or by numba's own variable
        known: dict[tuple[str, str | None], InstructionSet]
        known = {(kind.processor, kind.features): kind.instructions for kind in KINDS}
        without: InstructionSet = "avx2" if LEVELS[1] == _config.CPU_NAME else "portable"
        return known.get((_config.CPU_NAME, _config.CPU_FEATURES), without)
    if not is_x86():
        return "portable"
    if _has("avx512vnni") and _has("avx512bw"):
        return "vnni512"
    if _has("avxvnni"):
        return "vnni256"
    return "avx2" if _has("avx2") else "portable"


def is_x86() -> bool:
    """Return whether the processor is an x86-64."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _has(feature: str) -> bool:
    return bool(binding.get_host_cpu_features().get(feature))
