"""Engine on several cores: threads over the rows of a batch against processes with a share of the streams.

`python -m loadtest.benchmarks.engine_cores --layouts 1x1,1x2,2x1 --rows 8,32,64,128` measures engines with the sockets
of four front ends: a layout is processes times threads, and each process has its share of the rows and front ends.
`--model DIR` adds a published model to the shipped one. Windows of all layouts alternate, so other programs affect all
alike. Rows a second are those of all processes in their own time; a process does nothing else meanwhile but to act as
its front ends. Writes `loadtest/results/engine_cores.json` and `.md`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console

from loadtest.benchmarks.engine_turns import EngineProcess, Turns, measure_together
from loadtest.errors import BadSettings
from loadtest.program import EXIT_OK, RESULTS, Folder, ResultName, carry_out
from loadtest.reports.environment import Environment, describe
from loadtest.reports.pages import place_lines, show_written, table, write

NAME = "engine_cores"
LAYOUTS, ROWS = "1x1,1x2,2x1", "8,32,64,128"
PERCENTILE = 98


class Layout(msgspec.Struct, frozen=True):
    """Engine processes, and the threads of each."""

    processes: int
    threads: int

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read `2x1`. Raises: BadSettings."""
        processes, _, threads = text.partition("x")
        if not (processes.isdecimal() and threads.isdecimal() and int(processes) and int(threads)):
            raise BadSettings(f"--layouts: {text!r} is not PROCESSESxTHREADS, such as 1x2")
        return cls(int(processes), int(threads))

    def __str__(self) -> str:
        return f"{_counted(self.processes, 'process', 'es')} × {_counted(self.threads, 'thread', 's')}"


class Measured(msgspec.Struct, frozen=True):
    """One layout with batches of `rows`, over all processes. `ratio`: to the first layout, median over the rounds."""

    model: str
    rows: int
    layout: Layout
    rows_per_s: float
    ratio: float
    p98_ms: float
    step_us: float
    """Time of the model a row of one process."""
    outside_us: float
    """The engine's other time a row of one process: reading, choosing, writing."""


class EngineCores(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    measured: tuple[Measured, ...]
    environment: Environment


Rounds = dict[Layout, list[list[Turns]]]
"""By layout: what each process measured in each round."""


def measure(
    path: Path | None,
    layouts: Sequence[Layout],
    sizes: Sequence[int],
    *,
    front_ends: int,
    rounds: int,
    seconds: float,
) -> Iterator[Measured]:
    """Yield each layout at each number of rows, for one model (None: the shipped one). Raises: EOFError."""
    with contextlib.ExitStack() as stack:
        engines: dict[Layout, list[EngineProcess]] = {}
        name = "model"
        for layout in layouts:
            share = max(1, front_ends // layout.processes)
            engines[layout] = [EngineProcess(path, layout.threads, share) for _ in range(layout.processes)]
            for process in engines[layout]:
                stack.callback(process.stop)
                name = process.begun()
        for rows in sizes:
            for layout, processes in engines.items():
                for process in processes:
                    process.prepare(rows // layout.processes)
            found: Rounds = {layout: [] for layout in layouts}
            for number in range(rounds):
                for layout in layouts if number % 2 else reversed(layouts):
                    found[layout].append(measure_together(engines[layout], rows, seconds))
            yield from summarize(name, rows, found)


def summarize(model: str, rows: int, found: Rounds) -> Iterator[Measured]:
    """Yield what the rounds say of each layout; the first one is what the others are compared with."""
    rates = {layout: [sum(one.rows_per_s for one in each) for each in measured] for layout, measured in found.items()}
    first = next(iter(rates.values()))
    for layout, measured in found.items():
        turns = [one for each in measured for one in each]
        took_s = [took for one in turns for took in one.took_s]
        row_s = statistics.median(took / one.rows for one in turns for took in one.took_s)
        step_s = statistics.median(took / one.rows for one in turns for took in one.step_s)
        yield Measured(
            model,
            rows,
            layout,
            round(statistics.median(rates[layout]), 1),
            round(statistics.median(rate / base for rate, base in zip(rates[layout], first, strict=True)), 3),
            round(float(np.percentile(took_s, PERCENTILE)) * 1e3, 3),
            round(step_s * 1e6, 1),
            round((row_s - step_s) * 1e6, 1),
        )


def page(found: EngineCores) -> str:
    """Return the Markdown page."""
    lines = ["# Engine on several cores", "", f"`{found.command}`", ""]
    headings = ("rows, layout", "rows a second", "× the first", "p98, ms", "model, µs a row", "rest, µs a row")
    for model in dict.fromkeys(each.model for each in found.measured):
        rows = [_cells(each) for each in found.measured if each.model == model]
        lines += [f"## {model}", "", *table(headings, rows), ""]
    lines += [
        "Each process computes its share of the rows. Rows a second: all processes, each in its own time. p98: of the",
        "time in which one process answers its share. Model and rest: medians, of one process; the rest is reading the",
        "socket, choosing the batch and writing results. Medians of the rounds, ratios within each round.",
        "",
        *place_lines(found.environment),
    ]
    return "\n".join(lines) + "\n"


def _cells(each: Measured) -> tuple[str, ...]:
    times = (f"{each.p98_ms:.2f}", f"{each.step_us:.1f}", f"{each.outside_us:.1f}")
    return (f"{each.rows}, {each.layout}", f"{each.rows_per_s:,.0f}", f"{each.ratio:.2f}", *times)


def _counted(count: int, noun: str, plural: str) -> str:
    return f"{count} {noun}{plural if count > 1 else ''}"


def _sizes(text: str, layouts: Sequence[Layout]) -> list[int]:
    """Read the numbers of rows. Raises: BadSettings."""
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise BadSettings(f"--rows must be numbers with commas, not {text!r}")
    sizes = [int(part) for part in text.split(",")]
    most = max(layout.processes for layout in layouts)
    if min(sizes) < most:
        raise BadSettings(f"--rows: {min(sizes)} rows cannot be shared by {most} processes")
    return sizes


def main(
    *,
    layouts: Annotated[str, typer.Option(help="PROCESSESxTHREADS, with commas.")] = LAYOUTS,
    rows: Annotated[str, typer.Option(help="Rows of a batch over all processes, with commas.")] = ROWS,
    model: Annotated[list[Path] | None, typer.Option(help="Another model; repeatable.")] = None,
    shipped: Annotated[bool, typer.Option(help="Measure the shipped model.")] = True,
    front_ends: Annotated[int, typer.Option(min=1, help="Sockets over all processes.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each layout at each size.")] = 7,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of a window.")] = 0.5,
    name: ResultName = NAME,
    folder: Folder = RESULTS,
) -> None:
    """Compare threads with processes."""

    def work(command: str) -> int:
        console, measured = Console(stderr=True), list[Measured]()
        parsed = [Layout.parse(part) for part in layouts.split(",")]
        sizes = _sizes(rows, parsed)
        began_s = time.perf_counter()
        for path in ([None] if shipped else []) + list(model or []):
            for each in measure(path, parsed, sizes, front_ends=front_ends, rounds=rounds, seconds=seconds):
                measured.append(each)
                console.print(f"{each.model}, {', '.join(_cells(each))}", highlight=False)
        console.print(f"{time.perf_counter() - began_s:.0f} s", highlight=False)
        found = EngineCores(command, tuple(measured), describe(1))
        show_written(found, write(found, page(found), folder, name))
        return EXIT_OK

    carry_out("loadtest.benchmarks.engine_cores", work)


if __name__ == "__main__":
    typer.run(main)
