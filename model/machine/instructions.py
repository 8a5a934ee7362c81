"""Instruction set of compiled code: that of this processor, or a smaller one from the environment.

`ATEN_CPU_CAPABILITY` (torch) and `ONEDNN_MAX_CPU_ISA` (oneDNN) limit these libraries to older processors; here they
also limit the code that numba compiles, so that the whole program runs as on such a machine.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from llvmlite import binding
from numba.core import config as numba_config

_config: Any = numba_config  # its names are set when it reads the environment

InstructionSet = Literal["vnni512", "vnni256", "avx2", "portable"]
"""Instructions for 8-bit products; all give the same integers."""

LEVELS = ("x86-64", "x86-64-v3")  # LLVM's names of a processor without and with AVX2, both without AVX-512
WITH_VNNI = ("x86-64-v4", "+avx512vnni")
"""Processor name and features with VNNI for which an image is compiled, in the form of numba's variables."""
HELD_BACK = {"DEFAULT": 0, "SSE41": 0, "AVX": 0, "AVX2": 1}
"""Level by value of the two variables, in upper case; any other value, for example AVX512, has no effect."""


def limit_instructions(environment: Mapping[str, str] = os.environ) -> None:
    """Make numba compile for the level set in the environment, if the processor supports it; call it first."""
    asked = [environment.get(name, "").upper() for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")]
    levels = [HELD_BACK[value] for value in asked if value in HELD_BACK]
    if levels and _is_x86() and not _config.CPU_NAME:
        level = min(*levels, int(_has("avx2")))
        _config.CPU_NAME, _config.CPU_FEATURES = LEVELS[level], ""


@cache
def instruction_set() -> InstructionSet:
    """Return the fastest instructions for 8-bit products available here. Source: measured, model/LOG.md."""
    limit_instructions()
    if _config.CPU_NAME:  # limited by `limit_instructions`, or by numba's own variable
        if (_config.CPU_NAME, _config.CPU_FEATURES) == WITH_VNNI:
            return "vnni512"
        return "avx2" if LEVELS[1] == _config.CPU_NAME else "portable"
    if not _is_x86():
        return "portable"
    if _has("avx512vnni") and _has("avx512bw"):
        return "vnni512"
    if _has("avxvnni"):
        return "vnni256"
    return "avx2" if _has("avx2") else "portable"


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _has(feature: str) -> bool:
    return bool(binding.get_host_cpu_features().get(feature))
