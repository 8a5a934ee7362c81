"""Times of all-reduce over processes of this machine: recursive doubling, halving, and gloo's own, by size.

Usage: python -m tutti_asr_lab.benchmarks.all_reduce --processes 2 --processes 4 --processes 8

The three take turns, size by size and round by round. Every sum is checked: doubling and halving must have the bits of
the tree. Writes a JSON document and a page, with the size from which halving is faster; a training run measures its own
at its start.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import torch
import typer
from rich.console import Console
from torch import Tensor, distributed

from loadtest.program import RESULTS, Folder, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment, describe
from model.errors import ModelError
from tutti_asr_lab.training.acoustic.parallel import launch
from tutti_asr_lab.training.acoustic.parallel.all_reduce import TreeSum, crossover
from tutti_asr_lab.training.acoustic.parallel.team import Team

NAME = "all_reduce"
FIRST, LAST = 1 << 10, 64 << 20  # bytes: 1 KiB to 64 MiB
ALGORITHMS = ("doubling", "halving", "gloo")


class Case(msgspec.Struct, frozen=True):
    """One size. Milliseconds by algorithm, of the slowest process, median over rounds; `gloo` adds in another order."""

    processes: int
    size_bytes: int
    ms: dict[str, float]
    wrong: int  # sums whose bits are not the tree's, of doubling and halving


class Found(msgspec.Struct, frozen=True):
    """The result document. `halving_from`: bytes by number of processes, absent where halving is never faster."""

    command: str
    bars: tuple[Criterion, ...]
    halving_from: dict[int, int]
    cases: tuple[Case, ...]
    environment: Environment


def buffers_of(size: int, processes: int) -> Iterator[Tensor]:
    """Buffers of all processes, whose sum depends on the order; one after another, because each may be large."""
    generator = torch.Generator().manual_seed(processes)
    for rank in range(processes):
        yield torch.randn(size // 4, generator=generator).mul_(10.0 ** (rank % 7 - 3))


def sum_of(algorithm: str, team: Team, buffer: Tensor) -> Tensor:
    """Sum a buffer over all processes."""
    if algorithm == "gloo":
        distributed.all_reduce(buffer)
        return buffer
    return replace(team, halving_from=0 if algorithm == "halving" else None).sum(buffer)


def _work(sizes: Sequence[int], rounds: int, folder: Path, team: Team, _: object) -> bool:
    rows: dict[int, tuple[list[list[float]], int]] = {}
    for size in sizes:
        expected, own = TreeSum(), torch.empty(0)
        for rank, buffer in enumerate(buffers_of(size, team.size)):
            own = buffer.clone() if rank == team.rank else own
            expected.add(buffer)
        total, wrong = expected.total(), 0
        times: list[list[float]] = [[] for _ in ALGORITHMS]
        for number in range(rounds + 1):
            for algorithm, taken in zip(ALGORITHMS, times, strict=True):
                buffer = own.clone()
                team.objects(None)  # begin together
                began = time.perf_counter()
                found = sum_of(algorithm, team, buffer)
                if number:  # the first round touches new memory
                    taken.append(time.perf_counter() - began)
                wrong += algorithm != "gloo" and not torch.equal(found, total)
        rows[size] = (times, wrong)
    (folder / f"{team.rank}.json").write_text(json.dumps(list(rows.items())), encoding="utf-8")
    return False


def measure(processes: int, sizes: Sequence[int], rounds: int) -> list[Case]:
    """Run once with this number of processes. Raises: ModelError."""
    with tempfile.TemporaryDirectory() as folder:
        launch.run(processes, partial(_work, tuple(sizes), rounds, Path(folder)))
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())]
    cases = []
    for number, size in enumerate(sizes):
        of_size = [process[number][1] for process in found]  # of each process: times by algorithm, wrong sums
        slowest = [
            median(max(each) for each in zip(*(times[i] for times, _ in of_size), strict=True))
            for i in range(len(ALGORITHMS))
        ]
        ms = {name: round(1e3 * seconds, 4) for name, seconds in zip(ALGORITHMS, slowest, strict=True)}
        cases.append(Case(processes, size, ms, sum(wrong for _, wrong in of_size)))
    return cases


def run(
    processes: Sequence[int], sizes: Sequence[int], rounds: int, command: str, progress: Callable[[str], None]
) -> Found:
    """Run all measurements. Raises: ModelError."""
    cases: list[Case] = []
    chosen: dict[int, int] = {}
    for count in processes:
        progress(f"{count} processes …")
        more = measure(count, sizes, rounds)
        cases += more
        size = crossover({case.size_bytes: (case.ms["doubling"], case.ms["halving"]) for case in more})
        if size is not None:
            chosen[count] = size
    wrong = Criterion("sums whose bits are not the tree's", 0, sum(case.wrong for case in cases))
    return Found(command, (wrong,), chosen, tuple(cases), describe(0))


def markdown(found: Found) -> str:
    """Return the page."""
    rows = [
        (
            f"{case.processes}",
            _named(case.size_bytes),
            *(f"{case.ms[name]:.3g}" for name in ALGORITHMS),
            f"{case.ms['halving'] / case.ms['doubling']:.2f}",
        )
        for case in found.cases
    ]
    counts = sorted({case.processes for case in found.cases})
    faster = ", ".join(
        f"{count} processes: {'from ' + _named(found.halving_from[count]) if count in found.halving_from else 'never'}"
        for count in counts
    )
    heads = ("processes", "size", "doubling, ms", "halving, ms", "gloo, ms", "halving / doubling")
    return "\n".join(
        [
            "# All-reduce",
            "",
            f"`{found.command}`",
            "",
            *table(found.bars),
            "",
            f"Halving is faster than doubling: {faster}.",
            "Medians over rounds of the slowest process's time; the three take turns.",
            "gloo's all-reduce adds in an order that depends on the number of processes.",
            "",
            *pages.table(heads, rows),
            "",
            *pages.place_lines(found.environment),
            "",
        ]
    )


def _named(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main(
    *,
    processes: Annotated[list[int] | None, typer.Option(help="Processes; repeatable. Default: 2, 4 and 8.")] = None,
    largest: Annotated[int, typer.Option(help="Largest size, bytes.", min=FIRST)] = LAST,
    rounds: Annotated[int, typer.Option(help="Measured rounds.", min=1)] = 7,
    folder: Folder = RESULTS,
) -> None:
    """Time all-reduce by size, and check the bits of every sum."""

    def work(command: str) -> int:
        console = Console(stderr=True)
        sizes = [size for power in range(0, 17, 2) if (size := FIRST << power) <= largest]
        found = run(processes or [2, 4, 8], sizes, rounds, command, lambda line: console.print(line, highlight=False))
        return conclude(found, found.bars, markdown(found), folder, NAME)

    carry_out(f"tutti_asr_lab.benchmarks.{NAME}", work, ModelError)


if __name__ == "__main__":
    typer.run(main)
