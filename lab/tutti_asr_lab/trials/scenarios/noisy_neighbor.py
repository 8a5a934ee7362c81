"""CPU contention: latency of accepted streams while other processes compute on the same machine.

A server is started for each number of streams. Twice, one busy process per core runs for some seconds. The busy
processes have the server's niceness, so the scheduler gives each of them half of a contended core. They are stopped
here, and end by themselves if this program is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
import typer

from loadtest.errors import BadSettings
from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings, parse_streams
from loadtest.program import Levels, ServerUrl
from loadtest.reports.criteria import Criterion
from loadtest.reports.pages import number, percentile
from loadtest.served import server_at, start, stop
from tutti_asr_lab.trials.trial import Panel, TrialOptions, TrialReport, compared_line, measure

ACCEPTED_MS = 100.0
"""Latency objective of accepted streams at p98: the server's default `latency_budget_ms`."""

SECOND_S = 1.0
ARRIVAL_S = 5.0
"""Time before the measured window, as in the scenario `overload`."""

BUSY = "import sys, time\nend_s = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end_s: pass"
HEADINGS = ("offered", "phase", "p50", "p98", "max", "open", "limit")
INTRO = """{} busy processes, one per core and with the server's niceness, ran during {} visits of {} s, {} s apart:
each takes half of a contended core. Each number of streams was measured with a new server. Chunk latency in ms from the
scheduled send of a step's last sample; the load generator runs on the same cores, and its own lag is included. Open:
mean number of streams; limit: the lowest that the server set. The objective does not apply to the first {} s of a
visit."""


class Phase(msgspec.Struct, frozen=True):
    """Whole seconds of the measured window, from `from_s` until `to_s`; the objective applies if `judged`."""

    name: str
    from_s: int
    to_s: int
    judged: bool = True
    chunk_latency_ms: Spread | None = None
    open: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Quiet seconds, then `visits` times busy seconds followed by quiet ones.

    The second visit shows how the server has adapted after the first. The first `transition` seconds of a visit, which
    cannot be foreseen, are reported separately.
    """

    streams: Levels = "40,80,100"
    quiet: Annotated[int, typer.Option(help="Seconds before the first visit of the busy processes.", min=1)] = 10
    busy_s: Annotated[int, typer.Option("--beside", help="Seconds of each visit.")] = 10
    after: Annotated[int, typer.Option(help="Seconds after each visit.", min=1)] = 20
    visits: Annotated[int, typer.Option(help="Number of visits.", min=1)] = 2
    transition: Annotated[
        int, typer.Option(help="First seconds of a visit, to which the objective does not apply.", min=1)
    ] = 3
    stream_s: Annotated[float, typer.Option(help="Approximate length of a stream, seconds.")] = 15.0
    uploads: Annotated[int, typer.Option(help="Concurrent uploads alongside the live streams.")] = 0
    processes: Annotated[int, typer.Option(help="Busy processes; 0: one per core.")] = 0
    url: ServerUrl = None

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.busy_s <= self.transition:
            raise BadSettings(f"--beside {self.busy_s}: must be longer than --transition {self.transition}")

    @property
    def seconds(self) -> int:
        """Length of all phases together."""
        return self.quiet + self.visits * (self.busy_s + self.after)

    @property
    def visits_s(self) -> tuple[tuple[int, int], ...]:
        """(begin, end) of each visit, in seconds of the measured window."""
        begins = [self.quiet + visit * (self.busy_s + self.after) for visit in range(self.visits)]
        return tuple((begin, begin + self.busy_s) for begin in begins)

    def phases(self) -> tuple[Phase, ...]:
        """Return all phases in order."""
        phases = [Phase("before", 0, self.quiet)]
        for visit, (begin, end) in enumerate(self.visits_s, 1):
            settled = begin + self.transition
            phases += [
                Phase(f"visit {visit}, first {self.transition} s", begin, settled, judged=False),
                Phase(f"visit {visit}, the rest", settled, end),
                Phase(f"after visit {visit}", end, end + self.after),
            ]
        return tuple(phases)


def play(plan: Plan) -> TrialReport:
    """Measure the latency of accepted streams while other processes take half of each core for some seconds."""
    cores, clock = plan.processes or len(os.sched_getaffinity(0)), time.perf_counter
    phases: dict[str, tuple[Phase, ...]] = {}
    levels: list[LevelReport] = []
    bars, rows, panels, interrupted = list[Criterion](), list[tuple[str, ...]]([HEADINGS]), list[Panel](), False
    for streams in parse_streams(plan.streams):
        with server_at(plan.url, plan.serve_options) as url:
            settings = LoadSettings(
                url,
                (streams,),
                float(plan.seconds),
                warmup_s=ARRIVAL_S,
                stream_s=plan.stream_s,
                seed=plan.seed,
                retry=True,
                uploads=plan.uploads,
                period_s=SECOND_S,
            )
            result = measure(settings, partial(visit, plan, cores, clock))
        [level], [by_second] = result.document.levels, result.minutes
        levels.append(level)
        phases[str(streams)] = by_phase = figures(plan, level, by_second)
        bars += judge(level, by_phase)
        rows += [_row(streams, phase) for phase in by_phase]
        panels += _panels(level, by_second)
        if interrupted := result.document.interrupted:
            break
    return TrialReport(
        title="CPU contention",
        intro=INTRO.format(cores, plan.visits, plan.busy_s, plan.after, plan.transition),
        bars=tuple(bars),
        rows=tuple(rows),
        lines=tuple(_line(level) for level in levels),
        figures={"busy_processes": cores, "visits_s": plan.visits_s, "phases": phases},
        levels=tuple(levels),
        panels=tuple(panels),
        interrupted=interrupted,
    )


def figures(plan: Plan, level: LevelReport, by_second: Sequence[Latencies]) -> tuple[Phase, ...]:
    """Return the phases of a level measured by the second, with latency of the steps sent in each, mean of open
    streams, and lowest limit; an interrupted level has fewer phases.
    """
    phases = []
    for phase in plan.phases():
        latencies = by_second[phase.from_s : phase.to_s]
        if any(map(len, latencies)):
            servers = [minute.server for minute in level.minutes[phase.from_s : phase.to_s]]
            live = [server.sessions for server in servers if server.sessions is not None]
            limits = [server.limit for server in servers if server.limit is not None]
            phases.append(
                msgspec.structs.replace(
                    phase,
                    chunk_latency_ms=Latencies.merged(latencies).spread(),
                    open=sum(live) / len(live) if live else None,
                    limit=min(limits, default=None),
                )
            )
    return tuple(phases)


def judge(level: LevelReport, phases: Sequence[Phase]) -> list[Criterion]:
    """Return the criteria of a level: p98 of each judged phase, no failed streams, no changed transcripts."""
    name = f"{level.streams} offered"
    p98 = [(phase.name, phase.chunk_latency_ms) for phase in phases if phase.judged]
    return [
        *(Criterion(f"{name}, {phase}: p98", ACCEPTED_MS, ms.p98 if ms else None, "ms") for phase, ms in p98),
        Criterion(f"{name}: accepted streams that failed", 0, level.failed),
        Criterion(f"{name}: transcripts that differ from those alone", 0, level.mismatched),
    ]


@contextlib.asynccontextmanager
async def busy(processes: int, seconds: float) -> AsyncIterator[None]:
    """Run busy processes of one thread each; they are stopped on exit or after `seconds`."""
    command = [sys.executable, "-c", BUSY, str(seconds)]
    async with contextlib.AsyncExitStack() as running:
        for _ in range(processes):
            running.push_async_callback(asyncio.to_thread, stop, start(command, None))
        yield


async def visit(plan: Plan, processes: int, clock: Callable[[], float], schedule: Schedule) -> None:
    """Run the busy processes as planned during a level."""
    for begin, end in plan.visits_s:
        await asyncio.sleep(schedule.from_s + begin - clock())
        async with busy(processes, plan.busy_s):
            await asyncio.sleep(schedule.from_s + end - clock())


def _row(streams: int, phase: Phase) -> tuple[str, ...]:
    latencies = (percentile(phase.chunk_latency_ms, name) for name in ("p50", "p98", "max"))
    return (str(streams), phase.name, *latencies, number(phase.open, ".0f"), number(phase.limit, ".0f"))


def _line(level: LevelReport) -> str:
    line = f"{level.streams} offered: {level.complete + level.cut} streams accepted, {level.refused} refused; "
    if level.uploads is not None and level.uploads.at_a_time:
        line += f"{level.uploads.audio_s_per_s:.1f} s of uploads per second; "
    return f"{line}generator late by {percentile(level.generator_lag_ms, 'p98')} ms (p98); {compared_line(level)}"


def _panels(level: LevelReport, by_second: Sequence[Latencies]) -> list[Panel]:
    spreads = [latencies.spread() for latencies in by_second]
    servers = [minute.server for minute in level.minutes]
    at = tuple(map(float, range(len(by_second))))
    ms = {name: tuple(getattr(spread, name, None) for spread in spreads) for name in ("p50", "p98")}
    counts = {name: tuple(getattr(server, name) for server in servers) for name in ("sessions", "limit")}
    return [
        Panel(f"{level.streams} offered: ms", "second", at, ms, log=True),
        Panel("streams", "second", at[: len(servers)], counts),
    ]
