"""Facts about the machine of a run: device, driver, versions, clocks, commit, date. Read-only."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from loadtest.benchmarks.gpu.subjects import versions

ASK_TIMEOUT_S = 10.0
QUERY = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used"


def describe(device: torch.device, commit: str = "") -> dict[str, Any]:
    """Return the facts shared by all rows of a run; `commit` is used if this folder is not a checkout."""
    facts: dict[str, Any] = {
        "device": _processor() if device.type != "cuda" else torch.cuda.get_device_name(device),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "python": platform.python_version(),
        "versions": versions(),
        "commit": commit or _commit(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        facts |= {
            "multiprocessors": found.multi_processor_count,
            "memory_gib": round(found.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call,unused-ignore]
            "clocks_before": clocks(),
        }
        facts["driver"] = facts["clocks_before"].get("driver_version", "")
    return facts


def clocks() -> dict[str, str]:
    """Return clocks, temperature and power of the first device from nvidia-smi; empty if it is unavailable."""
    done = _output(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"])
    lines = done.splitlines()
    return dict(zip(QUERY.split(","), (part.strip() for part in lines[0].split(",")), strict=False)) if lines else {}


def _commit() -> str:
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return ""
    return _output(["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
