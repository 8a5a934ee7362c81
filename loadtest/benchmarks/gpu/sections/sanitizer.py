"""NVIDIA's compute-sanitizer over small steps of every rung, where it is installed: memory errors and races."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from loadtest.benchmarks.gpu.records import Case, Values
from loadtest.benchmarks.gpu.scale import Context

TOOLS = ("memcheck", "racecheck")
NETWORK = "tiny"  # a tool makes a kernel tens to thousands of times slower
ROWS = (1, 8)
TIMEOUT_S = 100.0
FOUND = 9  # the exit code that a tool gives for what it found
SAID_LINES = 2


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """One case a tool and batch size; none without a GPU."""
    if context.device.type == "cuda":
        for tool in TOOLS:
            for rows in ROWS:
                yield {"tool": tool, "network": NETWORK, "rows": rows}, partial(_check, tool, rows)


def _check(tool: str, rows: int) -> Values:
    """Run every rung once under the tool; a racecheck sees shared memory alone."""
    program = _program()
    if program is None:
        return {"skipped": "compute-sanitizer is not installed"}
    inner = [sys.executable, "-m", "loadtest.benchmarks.gpu", "compile", "--device", "cuda", "--network", NETWORK]
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND), *inner, "--rows", str(rows)]
    done = subprocess.run(  # noqa: S603 - the tool that was found
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False
    )
    lines = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
    said = lines or done.stdout.strip().splitlines()
    return {"clean": done.returncode == 0, "exit_code": done.returncode, "said": " / ".join(said[-SAID_LINES:])[-300:]}


def _program() -> str | None:
    """The tool on the path, or where CUDA's packages put it."""
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(usual) if usual.exists() else None)
