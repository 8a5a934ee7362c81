"""Environments in which a process believes that its processor is an older one, and what it then has."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from llvmlite import binding

from tests.support.audio.speech import ROOT

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
BASELINE = {"ATEN_CPU_CAPABILITY": "default"}
OLD_LIBRARIES = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-FMA",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3,X86_V4,AVX512_ICL,AVX512_SPR",
}
"""Takes the variants with these instructions out of glibc's and numpy's choice of exp, cos and others.

Names of glibc 2.33 and of numpy 2.4 on; numpy warns of those that the processor lacks.
"""

PROCESS = """
import sys
from importlib import import_module
from model.machine.instructions import instruction_set
print(instruction_set(), import_module(sys.argv[1]).digest(*sys.argv[2:]))
"""


def environment(switches: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with these switches and without the others."""
    every = {*AVX2, *BASELINE, *OLD_LIBRARIES}
    return {name: value for name, value in os.environ.items() if name not in every} | dict(switches)


@cache
def is_x86() -> bool:
    """Whether the switches have a meaning here."""
    return platform.machine() == "x86_64"


@cache
def has(feature: str) -> bool:
    """Whether the processor itself has a feature, by LLVM's name; no switch changes that."""
    return bool(binding.get_host_cpu_features().get(feature))


def digest_elsewhere(module: str, switches: Mapping[str, str], *arguments: str) -> str:
    """Return what `digest` of a module of tests returns in a process with these switches, with their instructions."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESS, module, *arguments],
        cwd=ROOT,
        env=environment(switches) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    instructions, digest = done.stdout.split()[-2:]
    portable = switches.items() >= BASELINE.items()
    if is_x86() and (portable or has("avx2")):
        assert instructions == ("portable" if portable else "avx2")
    return digest
