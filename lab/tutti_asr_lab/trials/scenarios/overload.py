"""Overload: with three times the limit of streams, accepted ones keep their latency and no resources leak."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import typer

from loadtest.errors import BadSettings
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure_levels
from loadtest.measurement.server_metrics import CAPACITY, SESSIONS_MAX, scrape_at
from loadtest.program import ServerUrl
from loadtest.reports.criteria import Criterion
from loadtest.served import server_at
from tutti_asr_lab.trials.leftovers import idle_figures, judge_leftovers
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, compared_line, latency_line, run_async, say

ACCEPTED_MS, REFUSAL_MS = 100.0, 50.0
"""Latency objectives of accepted streams and of refusals; both at p98."""

IDLE_WITHIN_S = 10.0
ARRIVAL_S = 5.0
"""Time before the measured window: all handshakes begin in the first second, and take longer on two cores."""

INTRO = """{} streams offered for {:g} s to a server with room for {}, measured from {:g} s after the first handshake.
Chunk latency from the scheduled send of a step's last sample, refusals from the start of the connection; tasks compared
with those of the new server, memory after the second overload with that after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Phases: the limit itself for `full_s`, then `factor` times the limit for `seconds`, and for `full_s` again.

    The second overload distinguishes a leak, growing with each overload, from memory retained by the allocator.
    """

    factor: Annotated[float, typer.Option(help="Offered streams as a multiple of the limit.", min=1.01)] = 3.0
    seconds: Annotated[float, typer.Option(help="Seconds of the overload.")] = 60.0
    full_s: Annotated[float, typer.Option(help="Seconds at the limit, and of the second overload.")] = 20.0
    limit: Annotated[int | None, typer.Option(help="Limit of streams. Default: as reported by the server.")] = None
    stream_s: Annotated[float, typer.Option(help="Approximate length of a stream, seconds.")] = 15.0
    retry: Annotated[
        bool, typer.Option(help="Refused clients retry after Retry-After; else with their next stream.")
    ] = True
    url: ServerUrl = None


def play(plan: Plan) -> TrialReport:
    """Offer a server more streams than its limit; measure accepted streams, refusals and leaks."""
    base = LoadSettings("", (1,), warmup_s=ARRIVAL_S, stream_s=plan.stream_s, seed=plan.seed, retry=plan.retry)
    with server_at(plan.url, plan.serve_options) as url:
        return run_async(overload(url, plan, base))


async def overload(url: str, plan: Plan, base: LoadSettings) -> TrialReport:
    """Load to the limit, overload twice, and wait until the server is idle after each.

    Raises: LoadTestError, ClientError.
    """
    limit = plan.limit or await _limit(url)
    offered = round(plan.factor * limit)
    levels, figures = list[LevelReport](), [await idle_figures(url, time.perf_counter, within_s=IDLE_WITHIN_S)]
    for streams, seconds in ((limit, plan.full_s), (offered, plan.seconds), (offered, plan.full_s)):
        settings = replace(base, url=url, streams=(streams,), seconds=seconds)
        levels += (await measure_levels(settings, progress=say)).document.levels
        figures.append(await idle_figures(url, time.perf_counter, within_s=IDLE_WITHIN_S, tasks=figures[0].tasks))
    quiet, before, first, after = figures
    full, level, _ = levels
    answers = level.refusals.answer_ms if level.refusals is not None else None
    memory = ", ".join(str(each.memory_mib) for each in (before, first, after))
    return TrialReport(
        title="Overload",
        intro=INTRO.format(level.streams, level.seconds, limit, ARRIVAL_S),
        bars=(*judge(level), *judge_leftovers(msgspec.structs.replace(first, tasks=quiet.tasks), after)),
        lines=(
            *latency_line(f"Full, {full.audio_s_per_s:.0f} streams carried on average", full.chunk_latency_ms),
            *latency_line(f"Overloaded, {level.audio_s_per_s:.0f} carried", level.chunk_latency_ms),
            *latency_line("Refusals", answers),
            compared_line(level),
            f"Memory when full, after one overload, after two: {memory} MiB.",
        ),
        levels=(full, level),
        figures={"limit": limit, "before": before, "after_first": first, "after": after},
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


async def _limit(url: str) -> int:
    """Return the server's limit of streams: its estimate, or its number of slots if that is lower."""
    values = (await scrape_at(url, time.perf_counter(), time.perf_counter)).values
    limit = min(values.get(CAPACITY) or float("inf"), values.get(SESSIONS_MAX) or float("inf"))
    if limit == float("inf"):
        raise BadSettings("the server does not report its limit of streams: set --limit")
    return int(limit)
