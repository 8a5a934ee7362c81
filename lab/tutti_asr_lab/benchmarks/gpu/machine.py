"""Facts about the machine of a run: device, driver, versions, clocks, commit, date. Read-only."""

from __future__ import annotations

import datetime as dt
import os
import platform
from typing import Any

import torch

from loadtest.reports.machine import commit as checkout_commit
from loadtest.reports.machine import output_of, processor, versions

PACKAGES = ("torch", "triton", "numpy", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
QUERY = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used"


def describe(device: torch.device, commit: str = "") -> dict[str, Any]:
    """Return the facts shared by all rows of a run; `commit` is used if this folder is not a checkout."""
    facts: dict[str, Any] = {
        "device": processor() if device.type != "cuda" else torch.cuda.get_device_name(device),
        "cores": len(os.sched_getaffinity(0)),
        "processor": processor(),
        "python": platform.python_version(),
        "versions": versions(PACKAGES),
        "commit": commit or checkout_commit(),
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
    done = output_of(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"])
    lines = done.splitlines()
    return dict(zip(QUERY.split(","), (part.strip() for part in lines[0].split(",")), strict=False)) if lines else {}
