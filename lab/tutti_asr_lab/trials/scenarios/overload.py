"""Overload test: with three times the limit of streams, accepted ones keep their latency and no resources leak.

`python -m tutti_asr_lab.trials.overload` starts a server, loads it to its limit, then far beyond it, checks for leaks,
and writes `loadtest/results/overload.json` and `.md`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from loadtest.errors import BadSettings
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.report import print_remarks
from loadtest.measurement.run import measure_levels
from loadtest.measurement.server_metrics import CAPACITY, SESSIONS_MAX, scrape_at
from loadtest.program import RESULTS, Folder, Seed, ServeOptions, ServerUrl, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import place_lines
from loadtest.served import server_at
from tutti_asr_lab.trials.leftovers import IdleFigures, idle_figures, judge_leftovers

NAME = "overload"

ACCEPTED_MS, REFUSAL_MS = 100.0, 50.0
"""Latency objectives of accepted streams and of refusals; both at p98."""

IDLE_WITHIN_S = 10.0
ARRIVAL_S = 5.0
"""Time before the measured window: all handshakes begin in the first second, and take longer on two cores."""


class Overload(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    limit: int
    factor: float
    bars: tuple[Criterion, ...]
    full: LevelReport
    overloaded: LevelReport
    before: IdleFigures
    after_first: IdleFigures
    after: IdleFigures
    environment: Environment
    retry: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Phases: the limit itself for `full_s`, then `factor` times the limit for `seconds`.

    A second overload of `full_s` follows, which distinguishes a leak, growing with each overload, from memory retained
    by the allocator, which is bounded.
    """

    factor: float = 3.0
    seconds: float = 60.0
    full_s: float = 20.0
    limit: int | None = None  # None: from the server's metrics

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.factor <= 1.0:
            raise BadSettings(f"--factor {self.factor:g}: must be more than 1")


async def overload(url: str, plan: Plan, base: LoadSettings, command: str, console: Console) -> Overload:
    """Load to the limit, overload twice, and wait until the server is idle after each.

    Raises: LoadTestError, ClientError.
    """
    clock = time.perf_counter
    limit = plan.limit or await _limit(url)
    settings = replace(base, url=url)
    quiet = await idle_figures(url, clock, within_s=IDLE_WITHIN_S)
    full = await measure_levels(replace(settings, streams=(limit,), seconds=plan.full_s), progress=console.print)
    before = await idle_figures(url, clock, within_s=IDLE_WITHIN_S, tasks=quiet.tasks)
    offered = round(plan.factor * limit)
    over = await measure_levels(replace(settings, streams=(offered,), seconds=plan.seconds), progress=console.print)
    first = await idle_figures(url, clock, within_s=IDLE_WITHIN_S, tasks=quiet.tasks)
    await measure_levels(replace(settings, streams=(offered,), seconds=plan.full_s), progress=console.print)
    after = await idle_figures(url, clock, within_s=IDLE_WITHIN_S, tasks=quiet.tasks)
    [level] = over.document.levels
    judged = (*judge(level), *judge_leftovers(msgspec.structs.replace(first, tasks=quiet.tasks), after))
    place = over.document.environment
    return Overload(
        command,
        limit,
        plan.factor,
        judged,
        full.document.levels[0],
        level,
        before=before,
        after_first=first,
        after=after,
        environment=place,
        retry=base.retry,
    )


def judge(level: LevelReport) -> list[Criterion]:
    """Return the criteria of the overloaded level."""
    chunk, refusals = level.chunk_latency_ms, level.refusals
    answer = refusals.answer_ms if refusals is not None else None
    other = None if refusals is None else sum(count for status, count in refusals.statuses.items() if status != 503)
    return [
        Criterion("accepted streams, chunk latency p98", ACCEPTED_MS, chunk.p98 if chunk else None, "ms"),
        Criterion("refusals, time to the response p98", REFUSAL_MS, answer.p98 if answer else None, "ms"),
        Criterion("refusals with another status than 503", 0, other),
        Criterion("refusals without Retry-After", 0, refusals.without_retry_after if refusals is not None else None),
        Criterion("accepted streams that failed", 0, level.failed),
        Criterion("transcripts that differ from those alone", 0, level.mismatched),
    ]


def markdown(found: Overload) -> str:
    """Return the page."""
    level, refusals = found.overloaded, found.overloaded.refusals
    lines = ["# Overload", "", f"`{found.command}`", ""]
    lines += [f"{level.streams} streams offered for {level.seconds:g} s to a server with room for {found.limit}, "]
    lines[-1] += f"measured from {ARRIVAL_S:g} s after the first handshake on. "
    lines[-1] += f"Refused clients retry {'after Retry-After' if found.retry else 'with their next stream'}. "
    lines[-1] += "Chunk latency from the scheduled send of a step's last sample, refusals from the start of the "
    lines[-1] += "connection; tasks compared with those of the new server, memory after the second overload with that "
    lines[-1] += "after the first."
    lines += ["", *table(found.bars), ""]
    for name, at in (("Full", found.full), ("Overloaded", level)):
        if (chunk := at.chunk_latency_ms) is not None:
            lines += [f"{name}, {at.streams} streams offered, {at.audio_s_per_s:.0f} carried on average: "]
            lines[-1] += f"p50 {chunk.p50:.1f}, p98 {chunk.p98:.1f}, max {chunk.max:.1f} ms; "
            lines[-1] += f"{at.compared} transcripts compared with those alone, {at.mismatched} differ.  "
    if refusals is not None and (answer := refusals.answer_ms) is not None:
        lines += [f"{answer.count} refusals: p50 {answer.p50:.1f}, p98 {answer.p98:.1f}, max {answer.max:.1f} ms.  "]
    memory = [figures.memory_mib for figures in (found.before, found.after_first, found.after)]
    if None not in memory:
        lines += ["Memory when full, after one overload, after two: {} MiB.  ".format(", ".join(map(str, memory)))]
    return "\n".join([*lines, "", *place_lines(found.environment), ""])


async def _limit(url: str) -> int:
    """Return the server's limit of streams: its estimate, or its number of slots if that is lower."""
    values = (await scrape_at(url, time.perf_counter(), time.perf_counter)).values
    limit = min(values.get(CAPACITY) or float("inf"), values.get(SESSIONS_MAX) or float("inf"))
    if limit == float("inf"):
        raise BadSettings("the server does not report its limit of streams: set --limit")
    return int(limit)


def run(where: AbstractContextManager[str], plan: Plan, base: LoadSettings, folder: Path, command: str) -> int:
    """Overload, print, write; returns the exit code. Raises: LoadTestError, ClientError."""
    console = Console(stderr=True)
    with where as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(overload(url, plan, base, command, console))
    print_remarks(found.overloaded, console)
    return conclude(found, found.bars, markdown(found), folder, NAME)


def main(
    *,
    factor: Annotated[float, typer.Option(help="Offered streams as a multiple of the limit.")] = 3.0,
    seconds: Annotated[float, typer.Option(help="Seconds of the overload.")] = 60.0,
    limit: Annotated[int | None, typer.Option(help="Limit of streams. Default: as reported by the server.")] = None,
    stream_s: Annotated[float, typer.Option(help="Approximate length of a stream, seconds.")] = 15.0,
    retry: Annotated[
        bool, typer.Option(help="Refused clients retry after Retry-After; else with their next stream.")
    ] = True,
    url: ServerUrl = None,
    serve_option: ServeOptions = None,
    seed: Seed = 1,
    folder: Folder = RESULTS,
) -> None:
    """Offer a server more streams than its limit; measure accepted streams, refusals and leaks."""

    def work(command: str) -> int:
        base = LoadSettings(url="", streams=(1,), warmup_s=ARRIVAL_S, stream_s=stream_s, seed=seed, retry=retry)
        return run(server_at(url, serve_option or ()), Plan(factor, seconds, limit=limit), base, folder, command)

    carry_out("tutti_asr_lab.trials.overload", work)


if __name__ == "__main__":
    typer.run(main)
