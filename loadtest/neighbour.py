"""A neighbour on the machine: what accepted streams feel while other processes compute beside the server.

`python -m loadtest.neighbour` starts a server for each number of streams, offers them in real time, lets one busy
process a core run beside them for some seconds, twice, and writes document, page and picture to `loadtest/results/`.
The busy processes have the server's niceness, so the scheduler gives each half of a core that both want. They are
started and stopped here, and end by themselves should this program be killed. Owns the phases, their criteria and page.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.errors import BadSettings
from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings, parse_streams
from loadtest.measurement.plot import picture
from loadtest.measurement.report import Result, print_remarks
from loadtest.measurement.run import measure
from loadtest.program import EXIT_INTERRUPTED, RESULTS, Folder, Levels, Seed, ServeOptions, ServerUrl, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import number, percentile, place_lines
from loadtest.served import server_at, start, stop

NAME = "neighbour"

ACCEPTED_MS = 100.0
"""Latency objective of accepted streams at p98: the server's default `latency_budget_ms`."""

SECOND_S = 1.0
ARRIVAL_S = 5.0
"""Time before the measured window, as in `loadtest.overload`."""

BUSY = "import sys, time\nend_s = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end_s: pass"


@dataclass(frozen=True, slots=True)
class Phase:
    """Whole seconds of the measured window, from `from_s` until `to_s`."""

    name: str
    from_s: int
    to_s: int
    judged: bool = True
    """Whether the objective holds here: not in the first seconds of a visit, which no server can foresee."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds of quiet, then `visits` times seconds beside the neighbour and seconds of quiet.

    The second visit shows what the server has learned from the first. A visit's first `transition_s` are told apart.
    """

    quiet_s: int = 10
    beside_s: int = 10
    after_s: int = 20
    visits: int = 2
    transition_s: int = 3

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if min(self.quiet_s, self.after_s, self.visits, self.transition_s) < 1:
            raise BadSettings("phases last a second or more, and the neighbour comes once at least")
        if self.beside_s <= self.transition_s:
            raise BadSettings("a visit is longer than its first seconds, which are told apart")

    @property
    def seconds(self) -> int:
        """All phases together."""
        return self.quiet_s + self.visits * (self.beside_s + self.after_s)

    @property
    def visits_s(self) -> tuple[tuple[int, int], ...]:
        """(begin, end) of each visit, in seconds of the measured window."""
        begins = [self.quiet_s + visit * (self.beside_s + self.after_s) for visit in range(self.visits)]
        return tuple((begin, begin + self.beside_s) for begin in begins)

    def phases(self) -> tuple[Phase, ...]:
        """All phases in their order."""
        found = [Phase("before", 0, self.quiet_s)]
        for visit, (begin, end) in enumerate(self.visits_s, 1):
            comes = begin + self.transition_s
            found += [
                Phase(f"visit {visit}, first {self.transition_s} s", begin, comes, judged=False),
                Phase(f"visit {visit}, the rest", comes, end),
                Phase(f"after visit {visit}", end, end + self.after_s),
            ]
        return tuple(found)


class Second(msgspec.Struct, frozen=True):
    """One second of a level; `open` streams, and the server's `limit` and `slowdown`, are read at its end."""

    p50_ms: float | None
    p98_ms: float | None
    open: float | None
    limit: float | None
    slowdown: float | None


class PhaseFigures(msgspec.Struct, frozen=True):
    """One phase of a level: latency of the steps sent in it, mean of open streams, least limit of its seconds."""

    name: str
    judged: bool
    chunk_latency_ms: Spread | None
    open: float | None
    limit: float | None


class Offered(msgspec.Struct, frozen=True):
    """One number of offered streams: its phases, its seconds, and the whole as a load test reports it."""

    phases: tuple[PhaseFigures, ...]
    seconds: tuple[Second, ...]
    level: LevelReport


class Neighbour(msgspec.Struct, frozen=True):
    """The document. `visits_s`: begin and end of each visit in seconds of a level."""

    command: str
    busy_processes: int
    visits_s: tuple[tuple[int, int], ...]
    bars: tuple[Criterion, ...]
    levels: tuple[Offered, ...]
    environment: Environment


def figures(plan: Plan, level: LevelReport, by_second: Sequence[Latencies]) -> Offered:
    """The figures of a level whose parts are seconds; a level that was cut short has fewer phases."""
    servers = [minute.server for minute in level.minutes]
    seconds = [
        Second(_ms(spread, "p50"), _ms(spread, "p98"), server.sessions, server.limit, server.slowdown)
        for spread, server in zip([latencies.spread() for latencies in by_second], servers, strict=False)
    ]
    phases = []
    for phase in plan.phases():
        if any(map(len, by_second[phase.from_s : phase.to_s])):
            within = seconds[phase.from_s : phase.to_s]
            spread = Latencies.merged(by_second[phase.from_s : phase.to_s]).spread()
            live = [each.open for each in within if each.open is not None]
            limits = [each.limit for each in within if each.limit is not None]
            mean = sum(live) / len(live) if live else None
            phases.append(PhaseFigures(phase.name, phase.judged, spread, mean, min(limits, default=None)))
    return Offered(tuple(phases), tuple(seconds), level)


def judge(offered: Offered) -> list[Criterion]:
    """The criteria of one number of offered streams: p98 of each judged phase, no stream failed, no text changed."""
    name = f"{offered.level.streams} offered"
    bars = [
        Criterion(f"{name}, {phase.name}: p98", ACCEPTED_MS, _ms(phase.chunk_latency_ms, "p98"), "ms")
        for phase in offered.phases
        if phase.judged
    ]
    level = offered.level
    bars.append(Criterion(f"{name}: accepted streams that failed", 0, level.failed))
    bars.append(Criterion(f"{name}: transcripts that differ from those alone", 0, level.mismatched))
    return bars


def _ms(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else getattr(spread, name)


@contextlib.asynccontextmanager
async def busy(processes: int, seconds: float) -> AsyncIterator[None]:
    """Let as many processes compute, each on one core at most, and stop them on leaving or after `seconds`."""
    command = [sys.executable, "-c", BUSY, str(seconds)]
    async with contextlib.AsyncExitStack() as running:
        for _ in range(processes):
            running.push_async_callback(asyncio.to_thread, stop, start(command, None))
        yield


async def visit(plan: Plan, processes: int, schedule: Schedule, clock: Callable[[], float]) -> None:
    """Let the neighbour come and go as planned, beside a level."""
    for begin, end in plan.visits_s:
        await asyncio.sleep(schedule.from_s + begin - clock())
        async with busy(processes, plan.beside_s):
            await asyncio.sleep(schedule.from_s + end - clock())


def markdown(found: Neighbour, plan: Plan, drawn: str) -> str:
    """The page."""
    lines = ["# A neighbour on the machine", "", f"`{found.command}`", ""]
    lines += [f"{found.busy_processes} busy processes, one a core and of the server's niceness, computed beside the "]
    lines[-1] += f"server {plan.visits} times for {plan.beside_s} s, {plan.after_s} s apart: each takes half of a core "
    lines[-1] += "that both want. For each number of streams a server of its own was started, which knew of no "
    lines[-1] += (
        "neighbour. Chunk latency in ms from the scheduled send of a step's last sample; the load generator runs "
    )
    lines[-1] += (
        "on the same cores, and its own lateness counts. Open: streams, mean of the seconds; limit: the lowest "
    )
    lines[-1] += f"that the server set. The objective is not asked of a visit's first {plan.transition_s} s."
    rows = []
    for offered in found.levels:
        for phase in offered.phases:
            latencies = (percentile(phase.chunk_latency_ms, name) for name in ("p50", "p98", "max"))
            load = (number(phase.open, ".0f"), number(phase.limit, ".0f"))
            rows.append((str(offered.level.streams), phase.name, *latencies, *load))
    lines += ["", *pages.table(("offered", "phase", "p50", "p98", "max", "open", "limit"), rows), ""]
    for offered in found.levels:
        level = offered.level
        lines += [f"{level.streams} offered: {level.complete + level.cut} streams taken, {level.refused} refused, "]
        lines[-1] += f"{level.compared} transcripts compared with those alone, {level.mismatched} differ; the "
        lines[-1] += f"generator sent {percentile(level.generator_lag_ms, 'p98')} ms late (p98)"
        if level.uploads is not None and level.uploads.at_a_time:
            lines[-1] += f"; {level.uploads.audio_s_per_s:.1f} s of uploads a second"
        lines[-1] += ".  "
    lines += ["", *table(found.bars), "", *place_lines(found.environment), "", f"![second by second]({drawn})", ""]
    return "\n".join(lines)


def draw(found: Neighbour, path: Path) -> None:
    """Latency, and streams beside the limit, second by second: a column for each number of offered streams."""
    columns = len(found.levels)
    with picture(path, 2, columns, (4.5 * columns, 6), sharex=True) as axes:
        for above, below, offered in zip(axes[:columns], axes[columns:], found.levels, strict=True):
            at = range(len(offered.seconds))
            for name in ("p50_ms", "p98_ms"):
                shown = [math.nan if (ms := getattr(each, name)) is None else ms for each in offered.seconds]
                above.plot(at, shown, label=name.removesuffix("_ms"))
            above.axhline(ACCEPTED_MS, color="grey", linestyle=":")
            above.set(title=f"{offered.level.streams} offered", ylabel="chunk latency, ms", yscale="log")
            for name, color in (("open", "C2"), ("limit", "C3")):
                shown = [math.nan if (n := getattr(each, name)) is None else n for each in offered.seconds]
                below.plot(at, shown, label=name, color=color)
            below.set(ylabel="streams", xlabel="second", ylim=(0, None))
            for begin, end in found.visits_s:
                for one in (above, below):
                    one.axvspan(begin, end, color="grey", alpha=0.2)


def run(
    where: Callable[[], AbstractContextManager[str]],
    plan: Plan,
    base: LoadSettings,
    folder: Path,
    command: str,
    *,
    processes: int | None = None,
) -> int:
    """Measure each number of streams of `base` on a server of its own, print, write; returns the exit code.

    `processes`: how many are busy, None = one a core. Raises: LoadTestError, ClientError.
    """
    console, clock = Console(stderr=True), time.perf_counter
    cores = processes or len(os.sched_getaffinity(0))
    results: list[Result] = []
    for streams in base.streams:
        with where() as url:
            asked = replace(base, url=url, streams=(streams,), seconds=float(plan.seconds), period_s=SECOND_S)
            beside = lambda schedule: visit(plan, cores, schedule, clock)  # noqa: E731 - four arguments less
            results.append(measure(asked, progress=console.print, beside=beside))
        print_remarks(results[-1].document.levels[0], console)
        if results[-1].document.interrupted:
            break
    levels = tuple(figures(plan, result.document.levels[0], result.minutes[0]) for result in results)
    bars = tuple(itertools.chain.from_iterable(map(judge, levels)))
    found = Neighbour(command, cores, plan.visits_s, bars, levels, results[0].document.environment)
    draw(found, folder / f"{NAME}.png")
    code = conclude(found, bars, markdown(found, plan, f"{NAME}.png"), folder, NAME)
    return EXIT_INTERRUPTED if results[-1].document.interrupted else code


def main(
    *,
    streams: Levels = "40,80,100",
    quiet: Annotated[int, typer.Option(help="Seconds before the neighbour comes.")] = 10,
    beside: Annotated[int, typer.Option(help="Seconds of each visit.")] = 10,
    after: Annotated[int, typer.Option(help="Seconds after each visit.")] = 20,
    visits: Annotated[int, typer.Option(help="How often it comes.")] = 2,
    transition: Annotated[int, typer.Option(help="Seconds of a visit in which the objective is not asked.")] = 3,
    stream_s: Annotated[float, typer.Option(help="Seconds of a stream, about.")] = 15.0,
    uploads: Annotated[int, typer.Option(help="Recordings posted at a time, beside the live streams.")] = 0,
    url: ServerUrl = None,
    serve_option: ServeOptions = None,
    seed: Seed = 1,
    folder: Folder = RESULTS,
) -> None:
    """Let other processes take half of each core for some seconds; see what accepted streams feel."""

    def work(command: str) -> int:
        plan = Plan(quiet, beside, after, visits, transition)
        base = LoadSettings(
            "", parse_streams(streams), warmup_s=ARRIVAL_S, stream_s=stream_s, seed=seed, retry=True, uploads=uploads
        )
        return run(lambda: server_at(url, serve_option or ()), plan, base, folder, command)

    carry_out("loadtest.neighbour", work)


if __name__ == "__main__":
    typer.run(main)
