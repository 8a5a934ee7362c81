"""Environment of a measurement: machine, versions, commit, seed and date; `environment` in the JSON document."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

VERSIONS_OF = ("tutti-asr", "torch", "numpy", "numba", "uvicorn", "uvloop", "websockets", "pocketsphinx")
GIT_TIMEOUT_S = 5.0


class Environment(msgspec.Struct, frozen=True):
    """Hardware, versions, commit, seed and date."""

    hardware: str
    cores: int
    system: str
    python: str
    versions: dict[str, str]
    commit: str
    seed: int
    date: str


def describe(seed: int) -> Environment:
    """Describe this machine, this checkout and the current time."""
    return Environment(
        hardware=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=platform.platform(),
        python=platform.python_version(),
        versions=versions(VERSIONS_OF),
        commit=_commit(),
        seed=seed,
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages."""
    found: dict[str, str] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Return the checkout's commit, with `+` if files are modified; empty for an installed package."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return ""  # git would describe an enclosing repository
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],  # noqa: S607 - git from PATH
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
