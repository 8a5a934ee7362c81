"""One process against front ends: latency and processor time of servers with the same model, measured in turn.

`python -m loadtest.benchmarks.process_layouts --front-ends 0,1,2` starts one server for each number of front ends (0:
one process) and streams real speech to one of them at a time, by the client of `tutti calibrate`, with an answer to
every step. All run all the time, so other programs affect all alike. Processor time is that of all processes of a
server while the streams are open, without opening them. Writes `loadtest/results/process_layouts.json` and `.md`.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console

from loadtest.generator.settings import STEP_SAMPLES, parse_streams
from loadtest.planning.calibrate import speech
from loadtest.planning.loopback import load
from loadtest.program import RESULTS, Folder, ServeOptions, carry_out
from loadtest.reports.criteria import Criterion, conclude
from loadtest.reports.criteria import table as bars_table
from loadtest.reports.environment import Environment, describe
from loadtest.reports.pages import place_lines, table
from loadtest.served import ALL_IN, served_process

NAME = "process_layouts"
LOW = 10  # streams at which latency is compared
SLOWER_MS, DEARER = 0.3, 1.05
"""Bars for one front end against one process: median of p50 at few streams, processor time a step at more."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    front_ends: int
    port: int
    pid: int


class Measured(msgspec.Struct, frozen=True):
    """One window of one server."""

    front_ends: int
    streams: int
    round: int
    p50_ms: float
    p98_ms: float
    us_a_step: float
    rows_a_batch: float


class Layouts(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    windows: tuple[Measured, ...]
    bars: tuple[Criterion, ...]
    environment: Environment


def measure(
    front_ends: Sequence[int], streams: Sequence[int], options: Sequence[str], *, rounds: int, seconds: float
) -> Iterator[Measured]:
    """Yield each window. The order of the servers changes with the round. Raises: ServerNotReady, OSError."""
    steps = speech(("en",), STEP_SAMPLES)
    with contextlib.ExitStack() as stack:
        servers = []
        for count in front_ends:
            command = (*ALL_IN, "--log-level", "error", "--front-ends", str(count), *options)
            url, pid = stack.enter_context(served_process(command))
            servers.append(Server(count, int(url.rpartition(":")[2]), pid))
        for level in streams:
            for number in range(rounds):
                for server in servers if number % 2 else reversed(servers):
                    yield _window(server, level, number + 1, steps, seconds)


def _window(server: Server, streams: int, number: int, steps: Sequence[bytes], seconds: float) -> Measured:
    window = load(server.port, server.pid, steps, streams=streams, seconds=seconds, answers=True)
    p50, p98 = np.percentile(window.round_trips_s, (50, 98)) * 1_000
    return Measured(
        server.front_ends,
        streams,
        number,
        round(float(p50), 3),
        round(float(p98), 3),
        round(1e6 * window.processes_s / window.rows, 1),
        round(window.rows / window.batches, 2),
    )


def judge(windows: Sequence[Measured]) -> list[Criterion]:
    """Return the criteria for one front end against one process, of what was measured."""
    bars = []
    for streams in dict.fromkeys(window.streams for window in windows):
        one, other = (_median(windows, count, streams) for count in (0, 1))
        if one is None or other is None:
            continue
        if streams <= LOW:
            found = round(other.p50_ms - one.p50_ms, 3)
            bars.append(Criterion(f"p50 of one front end above one process, {streams} streams", SLOWER_MS, found, "ms"))
        else:
            found = round(other.us_a_step / one.us_a_step, 3)
            bars.append(Criterion(f"processor time of one front end, {streams} streams", DEARER, found, "times"))
    return bars


def _median(windows: Sequence[Measured], front_ends: int, streams: int) -> Measured | None:
    """Return the medians over the rounds; None if that was not measured."""
    found = [each for each in windows if (each.front_ends, each.streams) == (front_ends, streams)]
    if not found:
        return None

    def median(name: str) -> float:
        return round(statistics.median([float(getattr(each, name)) for each in found]), 3)

    return Measured(
        front_ends, streams, 0, median("p50_ms"), median("p98_ms"), median("us_a_step"), median("rows_a_batch")
    )


def page(found: Layouts) -> str:
    """Return the Markdown page."""
    rows = []
    for streams in dict.fromkeys(window.streams for window in found.windows):
        for count in dict.fromkeys(window.front_ends for window in found.windows):
            middle = _median(found.windows, count, streams)
            if middle is not None:
                name = f"{count} front end{'s' if count > 1 else ''}" if count else "one process"
                times = (f"{middle.p50_ms:.2f}", f"{middle.p98_ms:.2f}", f"{middle.us_a_step:.0f}")
                rows.append((f"{streams} streams, {name}", *times, f"{middle.rows_a_batch:.1f}"))
    lines = [
        "# One process and front ends",
        "",
        f"`{found.command}`",
        "",
        "Medians of the rounds; round trip of a step, processor time of all processes of the server.",
        "",
        *table(("", "p50, ms", "p98, ms", "µs a step", "rows a batch"), rows),
        "",
        *bars_table(found.bars),
        "",
        *place_lines(found.environment),
    ]
    return "\n".join(lines) + "\n"


def main(
    *,
    front_ends: Annotated[str, typer.Option(help="Numbers of front ends, with commas; 0: one process.")] = "0,1,2",
    streams: Annotated[str, typer.Option(help="Numbers of live streams, with commas.")] = "10,100,300",
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each server at each level.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of a window.")] = 4.0,
    serve_option: ServeOptions = None,
    folder: Folder = RESULTS,
) -> None:
    """Compare one process with front ends; exit status 1 if a bar is missed."""

    def work(command: str) -> int:
        console, windows = Console(stderr=True), list[Measured]()
        counts = parse_streams(front_ends)
        for each in measure(counts, parse_streams(streams), serve_option or (), rounds=rounds, seconds=seconds):
            windows.append(each)
            console.print(
                f"{each.streams} streams, {each.front_ends} front ends: p50 {each.p50_ms:.2f}, p98 {each.p98_ms:.2f} "
                f"ms, {each.us_a_step:.0f} µs a step, {each.rows_a_batch:.1f} rows a batch",
                highlight=False,
            )
        bars = judge(windows)
        found = Layouts(command, tuple(windows), tuple(bars), describe(0))
        return conclude(found, bars, page(found), Path(folder), NAME)

    carry_out("loadtest.benchmarks.process_layouts", work)


if __name__ == "__main__":
    typer.run(main)
