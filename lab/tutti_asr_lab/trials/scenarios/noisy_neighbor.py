"""CPU contention: latency of accepted streams while other processes compute on the same machine.

`python -m tutti_asr_lab.trials.noisy_neighbor` starts a server for each number of streams, offers the streams in real
time, twice runs one busy process per core for some seconds, and writes document, page and plot to `loadtest/results/`.
The busy processes have the server's niceness, so the scheduler gives each of them half of a contended core. They are
stopped here, and end by themselves if this program is killed.
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

NAME = "noisy_neighbor"

ACCEPTED_MS = 100.0
"""Latency objective of accepted streams at p98: the server's default `latency_budget_ms`."""

SECOND_S = 1.0
ARRIVAL_S = 5.0
"""Time before the measured window, as in `tutti_asr_lab.trials.overload`."""

BUSY = "import sys, time\nend_s = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end_s: pass"


@dataclass(frozen=True, slots=True)
class Phase:
    """Whole seconds of the measured window, from `from_s` until `to_s`."""

    name: str
    from_s: int
    to_s: int
    judged: bool = True
    """Whether the latency objective applies: not in the first seconds of a visit, which cannot be foreseen."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Quiet seconds, then `visits` times busy seconds followed by quiet ones.

    The second visit shows how the server has adapted after the first. The first `transition_s` of a visit are reported
    separately.
    """

    quiet_s: int = 10
    busy_s: int = 10
    after_s: int = 20
    visits: int = 2
    transition_s: int = 3

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if min(self.quiet_s, self.after_s, self.visits, self.transition_s) < 1:
            raise BadSettings("--quiet, --after, --visits and --transition must be at least 1")
        if self.busy_s <= self.transition_s:
            raise BadSettings(f"--beside {self.busy_s}: must be longer than --transition {self.transition_s}")

    @property
    def seconds(self) -> int:
        """Length of all phases together."""
        return self.quiet_s + self.visits * (self.busy_s + self.after_s)

    @property
    def visits_s(self) -> tuple[tuple[int, int], ...]:
        """(begin, end) of each visit, in seconds of the measured window."""
        begins = [self.quiet_s + visit * (self.busy_s + self.after_s) for visit in range(self.visits)]
        return tuple((begin, begin + self.busy_s) for begin in begins)

    def phases(self) -> tuple[Phase, ...]:
        """Return all phases in order."""
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
    """One phase of a level: latency of the steps sent in it, mean of open streams, lowest limit."""

    name: str
    judged: bool
    chunk_latency_ms: Spread | None
    open: float | None
    limit: float | None


class Offered(msgspec.Struct, frozen=True):
    """Results for one number of offered streams: by phase, by second, and the load test's report."""

    phases: tuple[PhaseFigures, ...]
    seconds: tuple[Second, ...]
    level: LevelReport


class NoisyNeighbor(msgspec.Struct, frozen=True):
    """The result document. `visits_s`: begin and end of each visit in seconds of a level."""

    command: str
    busy_processes: int
    visits_s: tuple[tuple[int, int], ...]
    bars: tuple[Criterion, ...]
    levels: tuple[Offered, ...]
    environment: Environment


def figures(plan: Plan, level: LevelReport, by_second: Sequence[Latencies]) -> Offered:
    """Return the figures of a level measured by the second; an interrupted level has fewer phases."""
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
    """Return the criteria of a level: p98 of each judged phase, no failed streams, no changed transcripts."""
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
    """Run busy processes of one thread each; they are stopped on exit or after `seconds`."""
    command = [sys.executable, "-c", BUSY, str(seconds)]
    async with contextlib.AsyncExitStack() as running:
        for _ in range(processes):
            running.push_async_callback(asyncio.to_thread, stop, start(command, None))
        yield


async def visit(plan: Plan, processes: int, schedule: Schedule, clock: Callable[[], float]) -> None:
    """Run the busy processes as planned during a level."""
    for begin, end in plan.visits_s:
        await asyncio.sleep(schedule.from_s + begin - clock())
        async with busy(processes, plan.busy_s):
            await asyncio.sleep(schedule.from_s + end - clock())


def markdown(found: NoisyNeighbor, plan: Plan, drawn: str) -> str:
    """Return the page."""
    lines = ["# CPU contention", "", f"`{found.command}`", ""]
    lines += [f"{found.busy_processes} busy processes, one per core and with the server's niceness, ran during "]
    lines[-1] += f"{plan.visits} visits of {plan.busy_s} s, {plan.after_s} s apart: each takes half of a contended "
    lines[-1] += "core. Each number of streams was measured with a new server. Chunk latency in ms from the scheduled "
    lines[-1] += "send of a step's last sample; the load generator runs on the same cores, and its own lag is "
    lines[-1] += "included. Open: mean number of streams; limit: the lowest that the server set. The objective does "
    lines[-1] += f"not apply to the first {plan.transition_s} s of a visit."
    rows = []
    for offered in found.levels:
        for phase in offered.phases:
            latencies = (percentile(phase.chunk_latency_ms, name) for name in ("p50", "p98", "max"))
            load = (number(phase.open, ".0f"), number(phase.limit, ".0f"))
            rows.append((str(offered.level.streams), phase.name, *latencies, *load))
    lines += ["", *pages.table(("offered", "phase", "p50", "p98", "max", "open", "limit"), rows), ""]
    for offered in found.levels:
        level = offered.level
        lines += [f"{level.streams} offered: {level.complete + level.cut} streams accepted, {level.refused} refused, "]
        lines[-1] += f"{level.compared} transcripts compared with those alone, {level.mismatched} differ; the "
        lines[-1] += f"generator sent {percentile(level.generator_lag_ms, 'p98')} ms late (p98)"
        if level.uploads is not None and level.uploads.at_a_time:
            lines[-1] += f"; {level.uploads.audio_s_per_s:.1f} s of uploads per second"
        lines[-1] += ".  "
    lines += ["", *table(found.bars), "", *place_lines(found.environment), "", f"![second by second]({drawn})", ""]
    return "\n".join(lines)


def draw(found: NoisyNeighbor, path: Path) -> None:
    """Plot latency, open streams and limit by second, with a column for each number of offered streams."""
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
    """Measure each number of streams of `base` on a new server, print, write; returns the exit code.

    `processes`: number of busy processes, by default one per core. Raises: LoadTestError, ClientError.
    """
    console, clock = Console(stderr=True), time.perf_counter
    cores = processes or len(os.sched_getaffinity(0))
    results: list[Result] = []
    for streams in base.streams:
        with where() as url:
            asked = replace(base, url=url, streams=(streams,), seconds=float(plan.seconds), period_s=SECOND_S)
            contention = lambda schedule: visit(plan, cores, schedule, clock)  # noqa: E731 - binds four arguments
            results.append(measure(asked, progress=console.print, alongside=contention))
        print_remarks(results[-1].document.levels[0], console)
        if results[-1].document.interrupted:
            break
    levels = tuple(figures(plan, result.document.levels[0], result.minutes[0]) for result in results)
    bars = tuple(itertools.chain.from_iterable(map(judge, levels)))
    found = NoisyNeighbor(command, cores, plan.visits_s, bars, levels, results[0].document.environment)
    draw(found, folder / f"{NAME}.png")
    code = conclude(found, bars, markdown(found, plan, f"{NAME}.png"), folder, NAME)
    return EXIT_INTERRUPTED if results[-1].document.interrupted else code


def main(
    *,
    streams: Levels = "40,80,100",
    quiet: Annotated[int, typer.Option(help="Seconds before the first visit of the busy processes.")] = 10,
    busy_s: Annotated[int, typer.Option("--beside", help="Seconds of each visit.")] = 10,
    after: Annotated[int, typer.Option(help="Seconds after each visit.")] = 20,
    visits: Annotated[int, typer.Option(help="Number of visits.")] = 2,
    transition: Annotated[
        int, typer.Option(help="First seconds of a visit, to which the objective does not apply.")
    ] = 3,
    stream_s: Annotated[float, typer.Option(help="Approximate length of a stream, seconds.")] = 15.0,
    uploads: Annotated[int, typer.Option(help="Concurrent uploads alongside the live streams.")] = 0,
    url: ServerUrl = None,
    serve_option: ServeOptions = None,
    seed: Seed = 1,
    folder: Folder = RESULTS,
) -> None:
    """Measure the latency of accepted streams while other processes take half of each core for some seconds."""

    def work(command: str) -> int:
        plan = Plan(quiet, busy_s, after, visits, transition)
        base = LoadSettings(
            "", parse_streams(streams), warmup_s=ARRIVAL_S, stream_s=stream_s, seed=seed, retry=True, uploads=uploads
        )
        return run(lambda: server_at(url, serve_option or ()), plan, base, folder, command)

    carry_out("tutti_asr_lab.trials.noisy_neighbor", work)


if __name__ == "__main__":
    typer.run(main)
