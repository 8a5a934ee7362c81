"""Long streams: latency and the server's memory in the last minute, compared with the first."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from loadtest.generator.arrivals import Arrivals
from loadtest.generator.composition import write_streams
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings, parse_streams
from loadtest.measurement.report import faults
from loadtest.program import Levels, Manifest, ServerUrl
from loadtest.reports.criteria import Criterion
from loadtest.served import server_at
from tutti_asr_lab.trials.leftovers import MEMORY_SHARE
from tutti_asr_lab.trials.scenarios.soak import HEADINGS, minute_rows
from tutti_asr_lab.trials.trial import TrialOptions, TrialReport, compared_line, measure

DIFFERENT = 3
"""Number of distinct streams: text that leaks from one stream to another is detected."""

LATENCY_FACTORS = {"p50": 1.5, "p98": 2.0}
LATENCY_SLACK_MS = 2.0
"""Normal variation of a minute's latency on a shared machine (loadtest/LOG.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TrialOptions):
    """Levels, and the length of each stream and level."""

    streams: Levels = "1,20"
    minutes: Annotated[float, typer.Option(help="Length of each stream and each level, minutes.")] = 10.0
    manifest: Manifest = None
    url: ServerUrl = None


def play(plan: Plan) -> TrialReport:
    """Play long streams and compare their last minute with the first."""
    seconds = plan.minutes * 60.0
    with tempfile.TemporaryDirectory(prefix="tutti-") as name, server_at(plan.url, plan.serve_options) as url:
        manifest = write_streams(Path(name), [seconds] * DIFFERENT, plan.seed, plan.manifest)
        levels = parse_streams(plan.streams)
        settings = LoadSettings(url, levels, seconds, manifest=manifest, seed=plan.seed, arrivals=Arrivals.ONCE)
        document = measure(settings).document
    problems = [f"{level.streams} streams: {drift}" for level in document.levels for drift in drifts(level)]
    broken = sum(len(faults(level)) for level in document.levels)
    return TrialReport(
        title="Long streams, minute by minute",
        intro="Chunk latency in ms from the scheduled send of a step's last sample. Decoding: share of one core.",
        bars=(
            Criterion("figures that grew from the first minute to the last", 0, len(problems)),
            Criterion("faults of the streams", 0, broken),
        ),
        rows=(HEADINGS, *(row for level in document.levels for row in minute_rows(level))),
        lines=tuple(f"{level.streams} streams: {compared_line(level)}" for level in document.levels),
        levels=document.levels,
        problems=tuple(problems),
        interrupted=document.interrupted,
    )


def drifts(level: LevelReport) -> list[str]:
    """Return the figures that grew from the first minute to the last; empty for a stable or one-minute level."""
    if len(level.minutes) < 2:
        return []
    first, last = level.minutes[0], level.minutes[-1]
    grown = []
    if first.chunk_latency_ms is not None and last.chunk_latency_ms is not None:
        for name, factor in LATENCY_FACTORS.items():
            before_ms, after_ms = getattr(first.chunk_latency_ms, name), getattr(last.chunk_latency_ms, name)
            if after_ms > factor * before_ms + LATENCY_SLACK_MS:
                grown.append(f"chunk latency {name} grew from {before_ms:.1f} to {after_ms:.1f} ms")
    for name, field in (("memory", "memory_mib"), ("decoder memory", "decoder_mib")):
        before, after = getattr(first.server, field), getattr(last.server, field)
        if before is not None and after is not None and after > (1 + MEMORY_SHARE) * before:
            grown.append(f"{name} grew from {before:.1f} to {after:.1f} MiB")
    return grown
