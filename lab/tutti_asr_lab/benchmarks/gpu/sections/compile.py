"""Compilation of all kernels by concurrent processes, so that later sections load them from disk."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from tutti_asr_lab.benchmarks.gpu.records import Case, Values
from tutti_asr_lab.benchmarks.gpu.scale import Context
from tutti_asr_lab.benchmarks.gpu.subjects import bench, rungs
from tutti_asr_lab.benchmarks.gpu.timing import synchronize

PROGRAM = "tutti_asr_lab.benchmarks.gpu"

LARGEST_STEPS = 8
CHUNK_ROWS = 8
LEAST_S, MOST_S = 5.0, 120.0  # for the processes of one network


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield a case per network: host seconds until every process has run every step once."""
    for name in context.scale.networks:
        yield {"network": name}, partial(_compile, context, name)


def _compile(context: Context, name: str) -> Values:
    """Compile with one process per batch size: kernels depend on the number of columns."""
    began = time.perf_counter()
    rows = [1, *context.scale.step_rows[2:]]
    options = ["--device", context.device.type, "--network", name]
    commands = [[sys.executable, "-m", PROGRAM, "compile", *options, "--rows", str(each)] for each in rows]
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # noqa: S603 - this program
        for command in commands
    ]
    ends_s = time.monotonic() + min(MOST_S, max(LEAST_S, context.left_s))
    last_lines = [_last_line(each, ends_s) for each in started]
    errors = {line for each, line in zip(started, last_lines, strict=True) if each.returncode}
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "processes": len(started),
        "failed": sum(bool(each.returncode) for each in started),
        "said": " / ".join(sorted(errors))[:300],
    }


def _last_line(process: subprocess.Popen[str], ends_s: float) -> str:
    """Wait for a process, or kill it at `ends_s`; returns its last line of output."""
    try:
        errors = process.communicate(timeout=max(0.1, ends_s - time.monotonic()))[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "out of time"
    return "".join(errors.strip().splitlines()[-1:])


def run_once(network: str, rows: int, device: torch.device) -> None:
    """Run a step of `rows` rows in every rung, and a chunk if `rows` is the batch size of chunks."""
    with torch.inference_mode():
        for rung in rungs(device):
            steps = LARGEST_STEPS if rows == CHUNK_ROWS else 1
            made = bench(network, rung, device, rows=rows, steps=steps)
            made.fill(range(rows))
            for each in {1, steps}:
                made.step.enqueue(made.block(each), rows, each)
            synchronize(device)
