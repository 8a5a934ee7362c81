"""Overload test: three times the streams that a server takes; accepted ones keep their latency, nothing is left behind.

`python -m loadtest.overload` starts a server, loads it to its limit, then far beyond it, and looks at what remains;
writes `loadtest/results/overload.json` and `.md`. Owns the order of work and the criteria.
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
from loadtest.leftovers import IdleFigures, idle_figures, judge_leftovers
from loadtest.measurement.report import print_remarks
from loadtest.measurement.run import measure_levels
from loadtest.measurement.server_metrics import CAPACITY, SESSIONS_MAX, scrape_at
from loadtest.program import RESULTS, Folder, Seed, ServeOptions, ServerUrl, carry_out
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import place_lines
from loadtest.served import server_at

NAME = "overload"

ACCEPTED_MS, REFUSAL_MS = 100.0, 50.0
"""Latency objectives of accepted streams and of refusals; both at p98."""

IDLE_WITHIN_S = 10.0
ARRIVAL_S = 5.0
"""Time before the measured window: all handshakes begin in the first second, and two cores need longer for them."""


class Overload(msgspec.Struct, frozen=True):
    """The document."""

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

    A second overload of `full_s` follows: memory that the allocator keeps is bounded, a leak grows with each overload,
    and only the second one shows the difference.
    """

    factor: float = 3.0
    seconds: float = 60.0
    full_s: float = 20.0
    limit: int | None = None  # None: from the server's metrics

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.factor <= 1.0:
            raise BadSettings("an overload is more than the limit")


async def overload(url: str, plan: Plan, base: LoadSettings, command: str, console: Console) -> Overload:
    """Load to the limit, overload, overload again; wait until idle after each.

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
    """The criteria of the overloaded level itself."""
    chunk, refusals = level.chunk_latency_ms, level.refusals
    answer = refusals.answer_ms if refusals is not None else None
    other = None if refusals is None else sum(count for status, count in refusals.statuses.items() if status != 503)
    return [
        Criterion("accepted streams, chunk latency p98", ACCEPTED_MS, chunk.p98 if chunk else None, "ms"),
        Criterion("refusals, time to the answer p98", REFUSAL_MS, answer.p98 if answer else None, "ms"),
        Criterion("refusals with another status than 503", 0, other),
        Criterion("refusals without Retry-After", 0, refusals.without_retry_after if refusals is not None else None),
        Criterion("accepted streams that failed", 0, level.failed),
        Criterion("transcripts that differ from those alone", 0, level.mismatched),
    ]


def markdown(found: Overload) -> str:
    """The page."""
    level, refusals = found.overloaded, found.overloaded.refusals
    lines = ["# Overload", "", f"`{found.command}`", ""]
    lines += [f"{level.streams} streams offered for {level.seconds:g} s to a server with room for {found.limit}, "]
    lines[-1] += f"measured once all have asked to be let in, {ARRIVAL_S:g} s after the first. "
    lines[-1] += f"Refused ones come back {'when they were told to' if found.retry else 'with their next stream'}. "
    lines[-1] += "Chunk latency from the scheduled send of a step's last "
    lines[-1] += "sample, refusals from dialling; tasks beside those of the fresh server, memory after a "
    lines[-1] += "second overload beside that after the first."
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
    """The streams that the server takes: its estimate if it has one, else its number of slots."""
    values = (await scrape_at(url, time.perf_counter(), time.perf_counter)).values
    limit = min(values.get(CAPACITY) or float("inf"), values.get(SESSIONS_MAX) or float("inf"))
    if limit == float("inf"):
        raise BadSettings("the server does not say how many streams it takes: give --limit")
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
    factor: Annotated[float, typer.Option(help="How many times its limit the server is offered.")] = 3.0,
    seconds: Annotated[float, typer.Option(help="Of the overload.")] = 60.0,
    limit: Annotated[int | None, typer.Option(help="Streams at the limit. Default: what the server says.")] = None,
    stream_s: Annotated[float, typer.Option(help="Seconds of a stream, about.")] = 15.0,
    retry: Annotated[
        bool, typer.Option(help="Refused clients come back when they were told to; else with their next stream.")
    ] = True,
    url: ServerUrl = None,
    serve_option: ServeOptions = None,
    seed: Seed = 1,
    folder: Folder = RESULTS,
) -> None:
    """Offer a server more streams than it takes; see what the accepted ones feel, and what is left."""

    def work(command: str) -> int:
        base = LoadSettings(url="", streams=(1,), warmup_s=ARRIVAL_S, stream_s=stream_s, seed=seed, retry=retry)
        return run(server_at(url, serve_option or ()), Plan(factor, seconds, limit=limit), base, folder, command)

    carry_out("loadtest.overload", work)


if __name__ == "__main__":
    typer.run(main)
