"""Stability of a long level: its last minutes compared with the first, for long streams and for a soak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.errors import BadSettings
from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.measures import LevelReport
from loadtest.measurement.plot import picture
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, table
from loadtest.reports.environment import Environment
from loadtest.reports.pages import percentile, place_lines

HEADINGS = ("streams", "minute", "p50", "p98", "max", "decoding", "memory, MiB", "decoder, MiB")

LATENCY_FACTORS = {"p50": 1.5, "p98": 2.0}
LATENCY_SLACK_MS = 2.0
"""Normal variation of a minute's latency on a shared machine (loadtest/LOG.md)."""

MEMORY_SHARE = 0.01
"""Allowed growth of the server's memory after the first minute: memory retained by the allocator."""


class LongRuns(msgspec.Struct, frozen=True):
    """The result document of long streams: levels, each with its minutes."""

    command: str
    levels: tuple[LevelReport, ...]
    environment: Environment


def drifts(level: LevelReport) -> list[str]:
    """Return the figures that grew from the first minute to the last; empty for a stable or one-minute level."""
    if len(level.minutes) < 2:
        return []
    first, last = level.minutes[0], level.minutes[-1]
    found = []
    if first.chunk_latency_ms is not None and last.chunk_latency_ms is not None:
        for name, factor in LATENCY_FACTORS.items():
            before_ms, after_ms = getattr(first.chunk_latency_ms, name), getattr(last.chunk_latency_ms, name)
            if after_ms > factor * before_ms + LATENCY_SLACK_MS:
                found.append(f"chunk latency {name} grew from {before_ms:.1f} to {after_ms:.1f} ms")
    pairs = (
        ("memory", first.server.memory_mib, last.server.memory_mib),
        ("decoder memory", first.server.decoder_mib, last.server.decoder_mib),
    )
    for name, before, after in pairs:
        if before is not None and after is not None and after > (1 + MEMORY_SHARE) * before:
            found.append(f"{name} grew from {before:.1f} to {after:.1f} MiB")
    return found


def minute_rows(levels: Sequence[LevelReport]) -> list[tuple[str, ...]]:
    """Return a row for each minute of each level."""
    rows = []
    for level in levels:
        for number, minute in enumerate(level.minutes, 1):
            spread, server = minute.chunk_latency_ms, minute.server
            latencies = (percentile(spread, name) for name in ("p50", "p98", "max"))
            memory = (pages.number(server.memory_mib), pages.number(server.decoder_mib))
            share = pages.number(server.decode_cores, ".1%")
            rows.append((str(level.streams), str(number), *latencies, share, *memory))
    return rows


def markdown(runs: LongRuns) -> str:
    """Return the minutes as a page."""
    lines = ["# Long streams, minute by minute", "", f"`{runs.command}`", ""]
    lines += [
        "Chunk latency in ms from the scheduled send of a step's last sample. Decoding: share of one core.",
        "",
        *pages.table(HEADINGS, minute_rows(runs.levels)),
    ]
    for level in runs.levels:
        verdict = "; ".join(drifts(level)) or "the last minute is like the first"
        lines += ["", f"{level.streams} streams: {verdict}; {level.compared} transcripts compared with those alone, "]
        lines[-1] += f"{level.mismatched} differ."
    return "\n".join([*lines, "", *place_lines(runs.environment), ""])


class Soak(msgspec.Struct, frozen=True):
    """The result document of a soak."""

    command: str
    capacity: int
    load: float
    window_minutes: int
    first_ms: Spread | None
    last_ms: Spread | None
    bars: tuple[Criterion, ...]
    level: LevelReport
    environment: Environment


@dataclass(frozen=True, slots=True)
class Rule:
    """Bounds of the change between the first and the last `window_minutes`.

    `slack_ms` allows for normal variation between minutes in short runs on shared machines.
    """

    window_minutes: int = 5
    latency_share: float = 0.10
    memory_share: float = MEMORY_SHARE
    slack_ms: float = 0.0

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if self.window_minutes < 1:
            raise BadSettings(f"window_minutes {self.window_minutes}: must be at least 1")

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


def soak_markdown(soak: Soak, picture: str) -> str:
    """Return the minutes as a page."""
    level = soak.level
    lines = ["# Soak", "", f"`{soak.command}`", ""]
    lines += [f"{level.streams} live streams on average, {soak.load:.0%} of a capacity of {soak.capacity}, coming "]
    lines[-1] += f"and going for {level.seconds / 60:g} minutes: Poisson arrivals, exponential lengths. "
    lines[-1] += f"{level.complete} streams, "
    lines[-1] += f"{level.compared} transcripts compared with those alone, {level.mismatched} differ."
    lines += ["", *table(soak.bars), ""]
    for name, spread in (("First", soak.first_ms), ("Last", soak.last_ms)):
        if spread is not None:
            lines += [f"{name} {soak.window_minutes} min: p50 {spread.p50:.2f}, p98 {spread.p98:.2f}, max "]
            lines[-1] += f"{spread.max:.1f} ms.  "
    live = (pages.number(minute.server.sessions, ".0f") for minute in level.minutes)
    rows = [(*row, count) for row, count in zip(minute_rows([level]), live, strict=True)]
    lines += ["", *pages.table((*HEADINGS, "live"), rows)]
    return "\n".join([*lines, "", *place_lines(soak.environment), "", f"![minute by minute]({picture})", ""])


def draw_soak(soak: Soak, path: Path) -> None:
    """Plot latency, memory and live streams by minute."""
    minutes = soak.level.minutes
    at = range(1, len(minutes) + 1)
    with picture(path, 3, 1, (8, 7), sharex=True) as (above, middle, below):
        for name in ("p50", "p98"):
            spreads = [minute.chunk_latency_ms for minute in minutes]
            above.plot(at, [None if s is None else getattr(s, name) for s in spreads], marker=".", label=name)
        above.set(ylabel="chunk latency, ms", ylim=(0, None))
        middle.plot(at, [minute.server.memory_mib for minute in minutes], marker=".", color="C2")
        middle.set(ylabel="server memory, MiB")
        below.plot(at, [minute.server.sessions for minute in minutes], marker=".", color="C3")
        below.set(ylabel="live streams", xlabel="minute", ylim=(0, None))
