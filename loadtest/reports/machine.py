"""Facts about this machine and this checkout, with the standard library alone: a GPU host lacks most packages."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

ASK_TIMEOUT_S = 10.0


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages."""
    installed: dict[str, str] = {}
    for name in packages:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def commit() -> str:
    """Return the checkout's commit, with `+` if files are modified; empty for an installed package."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return ""  # git would describe an enclosing repository
    return output_of(["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"])


def output_of(command: Sequence[str]) -> str:
    """Return what a program prints; empty if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
