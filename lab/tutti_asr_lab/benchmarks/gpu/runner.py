"""Runner of the sections: each in a process of its own with a time limit; every row is written at once.

A failed kernel may leave the device unusable for its process: then the section ends, and the next one has a new
process. `python -m tutti_asr_lab.benchmarks.gpu run --sections NAME` repeats it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loadtest.reports.machine import commit as checkout_commit
from loadtest.reports.machine import output_of, processor, versions
from tutti_asr_lab.benchmarks.gpu import records
from tutti_asr_lab.benchmarks.gpu.scale import DRY, FULL, Context

SECTIONS: dict[str, float] = {  # by importance, with a time limit in seconds
    "bits": 140, "correct": 180, "steps": 230, "streams": 260, "recordings": 90,
}  # fmt: skip
ROW = "ROW "
GRACE_S = 60.0  # for a section to end by itself after its time limit: longer than a case
LEAST_S = 3.0  # no case is begun with less time left
ERROR_LETTERS = 400
PACKAGES = ("torch", "triton", "numpy", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
QUERY = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used"
TAIL = 12  # last lines kept of a process's output


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run: output file and device."""

    path: Path
    device: str
    dry: bool = False
    commit: str = ""


def run(settings: Settings, sections: dict[str, float]) -> records.Results:
    """Run these sections with their time limits; returns the whole document."""
    results = records.read(settings.path)
    facts = describe(torch.device(settings.device), settings.commit)
    results.runs.append(records.Run("chosen", facts, settings.dry))
    number = len(results.runs) - 1

    def append(section: str, case: records.Case, values: records.Values, error: str) -> None:
        results.rows.append(records.Row(number, section, case, values, error))
        records.write(results, settings.path)
        result = error or " ".join(f"{name}={value}" for name, value in values.items())
        named = " ".join(f"{name}={value}" for name, value in case.items())
        print(f"{section}: {named}: {result}"[:220], flush=True)  # noqa: T201 - progress

    for section, seconds in sections.items():
        words = ["section", section, f"{seconds:.0f}", settings.device, *(["--dry"] if settings.dry else [])]
        command = [sys.executable, "-u", "-m", "tutti_asr_lab.benchmarks.gpu", *words]
        process = subprocess.Popen(  # noqa: S603 - this program
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        limit = threading.Timer(seconds + GRACE_S, process.kill)
        limit.start()
        assert process.stdout is not None
        tail: deque[str] = deque(maxlen=TAIL)
        for line in process.stdout:
            tail.append(line.rstrip())
            if line.startswith(ROW):
                append(section, **json.loads(line.removeprefix(ROW)))
        limit.cancel()
        if code := process.wait():
            append(section, {}, {}, f"the process ended with {code}: {' / '.join(tail)[-300:]}")
    results.runs[-1] = dataclasses.replace(results.runs[-1], machine=facts | {"clocks_after": clocks()})
    records.write(results, settings.path)
    return results


def run_section(section: str, seconds: float, device: str, *, dry: bool) -> int:
    """Run the cases of a section in this process, a JSON line for each row; returns the exit code.

    It ends at an error after which the device is unusable.
    """
    place = torch.device(device)
    context = Context(place, DRY if dry else FULL, time.monotonic() + seconds)
    if dry:
        torch.set_num_threads(1)  # the products are tiny
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # sums in fp32, as in every rung
    module = importlib.import_module(f"tutti_asr_lab.benchmarks.gpu.sections.{section}")
    with torch.inference_mode():
        for case, work in module.cases(context):
            values: records.Values = {}
            error = ""
            if context.left_s < LEAST_S and not dry:
                error = "not run: the section's time was up"
            else:
                try:
                    values = work()
                except Exception as problem:  # noqa: BLE001 - a failed case must not end the others
                    traceback.print_exc()
                    error = f"{type(problem).__name__}: {problem}"[:ERROR_LETTERS]
            print(ROW + json.dumps({"case": case, "values": values, "error": error}), flush=True)  # noqa: T201
            if context.left_s < LEAST_S and not dry:
                return 0
            if error and place.type == "cuda":
                torch.cuda.synchronize(place)  # raises if the device is unusable for this process
    return 0


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
