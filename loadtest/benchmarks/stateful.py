"""A million steps of the scheduler's property test, once, with a record of what was run.

`python -m loadtest.benchmarks.stateful --steps 1000000` runs `tests/batching/test_batcher_stateful.py` under one seed
after another until there are as many, and writes `loadtest/results/stateful.json`. To run a seed that failed again by
itself: `pytest tests/batching/test_batcher_stateful.py --hypothesis-seed=SEED`. Owns the counting; the test has the
rules.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.program import EXIT_BAD, EXIT_OK, RESULTS, carry_out
from loadtest.reports import environment, pages
from loadtest.reports.environment import Environment
from loadtest.served import ROOT

TEST = "tests/batching/test_batcher_stateful.py"
STEPS_VARIABLE = "TUTTI_STATEFUL_STEPS"
WITHIN_S = 600.0
"""For one seed, which takes a quarter of a minute."""


class StatefulRun(msgspec.Struct, frozen=True):
    """The record. `counts` are the test's own, over all policies; `steps` is one of them."""

    command: str
    passed: bool
    steps: int
    by_policy: dict[str, int]
    counts: dict[str, int]
    seeds: tuple[int, int]  # first and last
    seconds: float
    environment: Environment
    failure: str = ""


class _Run(msgspec.Struct, frozen=True):
    passed: bool
    counts: Counter[str]
    by_policy: Counter[str]
    tail: str


def run_seed(seed: int) -> _Run:
    """Run the test under one seed: one round of examples for each policy. Raises: subprocess.TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="tutti-") as folder:
        report = Path(folder) / "report.xml"
        options = [f"--hypothesis-seed={seed}", "--timeout=0", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        done = subprocess.run(  # noqa: S603 - our own test
            [sys.executable, "-m", "pytest", "-q", TEST, *options],
            cwd=ROOT,
            env={**os.environ, STEPS_VARIABLE: "1"},  # a forced seed would repeat the same examples in a second round
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        counts, by_policy = _counted(report) if report.is_file() else (Counter[str](), Counter[str]())
    return _Run(done.returncode == 0, counts, by_policy, done.stdout[-4000:] + done.stderr[-1000:])


def _counted(report: Path) -> tuple[Counter[str], Counter[str]]:
    counts, by_policy = Counter[str](), Counter[str]()
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
        for found in case.iter("property"):
            name, value = found.get("name", ""), int(found.get("value", "0"))
            counts[name] += value
            if name == "steps":
                by_policy[case.get("name", "").partition("[")[2].rstrip("]")] += value
    return counts, by_policy


def run(steps: int, seed: int, result: Path, command: str) -> int:
    """Run seeds until there are enough steps or one fails; writes the record after each. Returns: the exit code."""
    console, began_s = Console(stderr=True), time.monotonic()
    counts, by_policy, last = Counter[str](), Counter[str](), seed
    while True:
        ran = run_seed(last)
        counts, by_policy = counts + ran.counts, by_policy + ran.by_policy
        seconds = round(time.monotonic() - began_s, 1)
        record = StatefulRun(
            command=command,
            passed=ran.passed,
            steps=counts["steps"],
            by_policy=dict(by_policy),
            counts=dict(counts),
            seeds=(seed, last),
            seconds=seconds,
            environment=environment.describe(seed),
            failure="" if ran.passed else ran.tail,
        )
        pages.write_json(record, result)
        console.print(f"seed {last}: {counts['steps']:,} of {steps:,} steps, {seconds:.0f} s", highlight=False)
        if not ran.passed or not ran.counts["steps"]:
            console.print(ran.tail, style="red", markup=False, highlight=False)
            return EXIT_BAD
        if counts["steps"] >= steps:
            typer.echo(msgspec.json.encode(record).decode())
            return EXIT_OK
        last += 1


def main(
    *,
    steps: Annotated[int, typer.Option(help="At least so many, over all policies.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="The first one; each round takes the next.")] = 1,
    result: Annotated[Path, typer.Option(help="Where the record is written.")] = RESULTS / "stateful.json",
) -> None:
    """Run the scheduler's stateful property test for a long time, and record it."""
    carry_out("loadtest.benchmarks.stateful", lambda command: run(steps, seed, result, command))


if __name__ == "__main__":
    typer.run(main)
