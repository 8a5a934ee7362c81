"""Soak: streams come and go for half an hour at 70 % of capacity; the last minutes must be like the first.

With `--minutes 3` it compares single minutes, for continuous integration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.measures import MINUTE_S, LevelReport
from loadtest.generator.settings import Arrivals, LoadSettings
from loadtest.measurement.report import Result
from loadtest.program import ServerUrl
from loadtest.reports.criteria import Criterion
from loadtest.reports.pages import number, percentile
from loadtest.served import ALL_IN, server_at
from tutti_asr_lab.trials.leftovers import MEMORY_SHARE
from tutti_asr_lab.trials.trial import Panel, TrialOptions, TrialReport, latency_line, measure

LONG_MINUTES = 10
"""From this length on, the first and last five minutes are compared."""

HEADINGS = ("streams", "minute", "p50", "p98", "max", "decoding", "memory, MiB", "decoder, MiB", "live")
INTRO = """{} live streams on average, {:.0%} of a capacity of {}, coming and going for {:g} minutes: Poisson arrivals,
exponential lengths. {} streams, {} transcripts compared with those alone, {} differ. Chunk latency in ms from the
scheduled send of a step's last sample. Decoding: share of one core."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Bounds of the change between the first and the last `window_minutes`.

    `slack_ms` allows for normal variation between minutes in short runs on shared machines.
    """

    window_minutes: int = 5
    latency_share: float = 0.10
    memory_share: float = MEMORY_SHARE
    slack_ms: float = 0.0

    def windows(self, minutes: Sequence[Latencies]) -> tuple[Spread | None, Spread | None]:
        """Return the latencies of the first and of the last minutes; None if they overlap."""
        if len(minutes) < 2 * self.window_minutes:
            return None, None
        first, last = minutes[: self.window_minutes], minutes[-self.window_minutes :]
        return Latencies.merged(first).spread(), Latencies.merged(last).spread()

    def judge(self, level: LevelReport, first: Spread | None, last: Spread | None) -> list[Criterion]:
        """Return the criteria of a level; memory is compared with that at the end of the first measured minute."""
        span = f"{self.window_minutes} min"
        allowed = 0.0 if first is None else first.p98 * (1 + self.latency_share) + self.slack_ms
        memory = [minute.server.memory_mib for minute in level.minutes]
        before, after = (memory[0], memory[-1]) if len(memory) > 1 else (None, None)
        most = 0.0 if before is None else before * (1 + self.memory_share)
        return [
            Criterion(f"chunk latency p98, last {span}", round(allowed, 2), last.p98 if last and first else None, "ms"),
            Criterion("memory at the end", round(most, 2), after if before is not None else None, "MiB"),
            Criterion("transcripts that differ from those alone", 0, level.mismatched if level.compared else None),
            Criterion("streams that failed", 0, level.failed),
            Criterion("streams refused", 0, level.refused),
            Criterion("steps without a result", 0, level.unanswered),
        ]


SHORT_RULE = Rule(window_minutes=1, latency_share=0.5, memory_share=0.02, slack_ms=5.0)
"""Compares single minutes on a shared machine: detects unbounded growth, not drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Length and load of a soak."""

    capacity: Annotated[int, typer.Option(help="Streams that this machine sustains, see loadtest/results/capacity.md.")]
    minutes: Annotated[float, typer.Option(help="Minutes measured, after the warm-up.")] = 30.0
    load: Annotated[float, typer.Option(help="Mean number of live streams, as a share of the capacity.")] = 0.7
    stream_s: Annotated[float, typer.Option(help="Mean length of a stream, seconds.")] = 20.0
    warmup_s: Annotated[float, typer.Option(help="Seconds of warm-up.")] = MINUTE_S
    url: ServerUrl = None


def play(plan: Plan) -> TrialReport:
    """Play streams that come and go, and compare the last minutes with the first."""
    with server_at(plan.url, (*ALL_IN, *plan.serve_options)) as url:
        settings = LoadSettings(
            url,
            (max(1, round(plan.load * plan.capacity)),),
            plan.minutes * MINUTE_S,
            warmup_s=plan.warmup_s,
            stream_s=plan.stream_s,
            seed=plan.seed,
            arrivals=Arrivals.CHURN,
        )
        return report_of(plan, measure(settings), Rule() if plan.minutes >= LONG_MINUTES else SHORT_RULE)


def report_of(plan: Plan, result: Result, rule: Rule) -> TrialReport:
    """Judge a level by the rule."""
    [level], [minutes] = result.document.levels, result.minutes
    first, last = rule.windows(minutes)
    length, load = level.seconds / 60, level.streams / plan.capacity
    counts = (level.complete, level.compared, level.mismatched)
    return TrialReport(
        title="Soak",
        intro=INTRO.format(level.streams, load, plan.capacity, length, *counts),
        bars=tuple(rule.judge(level, first, last)),
        rows=(HEADINGS, *minute_rows(level)),
        lines=(
            *latency_line(f"First {rule.window_minutes} min", first),
            *latency_line(f"Last {rule.window_minutes} min", last),
        ),
        levels=(level,),
        panels=_panels(level),
        interrupted=result.document.interrupted,
    )


def minute_rows(level: LevelReport) -> list[tuple[str, ...]]:
    """Return a row for each minute of a level."""
    rows = []
    for at, minute in enumerate(level.minutes, 1):
        spread, server = minute.chunk_latency_ms, minute.server
        latencies = (percentile(spread, name) for name in ("p50", "p98", "max"))
        memory = (number(server.memory_mib), number(server.decoder_mib), number(server.sessions, ".0f"))
        rows.append((str(level.streams), str(at), *latencies, number(server.decode_cores, ".1%"), *memory))
    return rows


def _panels(level: LevelReport) -> tuple[Panel, ...]:
    at = tuple(float(minute) for minute in range(1, len(level.minutes) + 1))
    spreads = [each.chunk_latency_ms for each in level.minutes]
    servers = [each.server for each in level.minutes]
    ms = {name: tuple(getattr(spread, name, None) for spread in spreads) for name in ("p50", "p98")}
    return (
        Panel("chunk latency, ms", "minute", at, ms),
        Panel("MiB", "minute", at, {"server memory": tuple(server.memory_mib for server in servers)}),
        Panel("streams", "minute", at, {"live": tuple(server.sessions for server in servers)}),
    )
