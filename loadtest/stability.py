"""Whether a long level stays as it began: its minutes side by side, and what has drifted.

Owns the bounds and the page. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtest.environment import Environment
from loadtest.generator.measures import LevelReport

HEADINGS = ("streams", "minute", "p50", "p98", "max", "decoding", "memory, MiB", "decoder, MiB")

LATENCY_FACTORS = {"p50": 1.5, "p98": 2.0}
LATENCY_SLACK_MS = 2.0
"""A minute's latency on a shared machine moves by this much without a cause of its own (loadtest/LOG.md)."""

MEMORY_SHARE = 0.01
"""Growth of the server after the first minute: what its allocator keeps of short-lived messages."""


class LongRuns(msgspec.Struct, frozen=True):
    """What is written: one level after another, each with its minutes."""

    command: str
    levels: tuple[LevelReport, ...]
    environment: Environment


def drifts(level: LevelReport) -> list[str]:
    """What was worse in the last minute than in the first; empty when the level is flat, or has one minute only."""
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


def table(levels: Sequence[LevelReport]) -> list[tuple[str, ...]]:
    """A row for each minute of each level."""
    rows = []
    for level in levels:
        for number, minute in enumerate(level.minutes, 1):
            spread, server = minute.chunk_latency_ms, minute.server
            latencies = ("–",) * 3 if spread is None else (f"{ms:.1f}" for ms in (spread.p50, spread.p98, spread.max))
            share = "–" if server.decode_cores is None else f"{server.decode_cores:.1%}"
            memory = (_mib(server.memory_mib), _mib(server.decoder_mib))
            rows.append((str(level.streams), str(number), *latencies, share, *memory))
    return rows


def markdown(runs: LongRuns) -> str:
    """The minutes as a page."""
    lines = ["# Long streams, minute by minute", "", f"`{runs.command}`", ""]
    lines += [
        "Chunk latency in ms from the scheduled send of a step's last sample. Decoding: its share of one core.",
        "",
    ]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|" + "---:|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row) + " |" for row in table(runs.levels)]
    for level in runs.levels:
        verdict = "; ".join(drifts(level)) or "the last minute is as the first"
        lines += ["", f"{level.streams} streams: {verdict}; {level.compared} transcripts compared with those alone, "]
        lines[-1] += f"{level.mismatched} differ."
    place = runs.environment
    lines += ["", f"{place.hardware}, {place.cores} cores, Python {place.python}, {place.date}.", ""]
    return "\n".join(lines)


def _mib(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
