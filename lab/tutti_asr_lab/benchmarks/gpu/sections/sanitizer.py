"""Memory errors and races found by NVIDIA's compute-sanitizer, if installed, in small steps of every rung."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import bench, rungs
from tutti_asr_lab.benchmarks.gpu.timing import synchronize

TOOLS = ("memcheck", "racecheck")
NETWORK = "tiny"  # the tools slow kernels down by factors of ten to thousands
ROWS = (1, 8)
CHUNK_STEPS = 8
TIMEOUT_S = 100.0
FOUND = 9  # exit code of a tool that found errors
SAID_LINES = 2


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield a case per tool and batch size; none without a GPU."""
    if context.device.type == "cuda":
        for tool in TOOLS:
            for rows in ROWS:
                yield {"tool": tool, "network": NETWORK, "rows": rows}, partial(_check, tool, rows)


def _check(tool: str, rows: int) -> Values:
    """Run every rung once under the tool; racecheck covers only shared memory."""
    program = _program()
    if program is None:
        return {"skipped": "compute-sanitizer is not installed"}
    inner = [sys.executable, "-m", "tutti_asr_lab.benchmarks.gpu.sections.sanitizer", str(rows)]
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND), *inner]
    done = subprocess.run(  # noqa: S603 - a tool of CUDA
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False
    )
    lines = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
    said = lines or done.stdout.strip().splitlines()
    return {"clean": done.returncode == 0, "exit_code": done.returncode, "said": " / ".join(said[-SAID_LINES:])[-300:]}


def _program() -> str | None:
    """Return the path of the tool, from PATH or from CUDA's default folder."""
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(usual) if usual.exists() else None)


def run_once(rows: int, device: torch.device) -> None:
    """Run a step of `rows` rows in every rung, and a chunk if `rows` is the batch size of chunks."""
    with torch.inference_mode():
        for rung in rungs(device):
            steps = CHUNK_STEPS if rows == max(ROWS) else 1
            made = bench(NETWORK, rung, device, rows=rows, steps=steps)
            made.fill(range(rows))
            for each in {1, steps}:
                made.step.enqueue(made.block(each), rows, each)
            synchronize(device)


if __name__ == "__main__":
    run_once(int(sys.argv[1]), torch.device("cuda"))
