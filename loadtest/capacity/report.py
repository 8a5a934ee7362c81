"""Report on capacity: objective, criteria, page, and the plot of latency and batch sizes against load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from loadtest.compare import Comparison, ceiling_lines, headings
from loadtest.compare import table as level_table
from loadtest.generator.measures import LevelReport
from loadtest.generator.parts import Parts
from loadtest.measurement import plot
from loadtest.measurement.report import Result, faults
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, table
from loadtest.reports.pages import place_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OBJECTIVE_MS = 100.0
"""Limit of the p98 chunk latency for a level to count as sustained. Source of the percentile: Deep Speech 2, §7."""

WANTED_MS = {100: 10.0, 300: 25.0, 400: OBJECTIVE_MS}
"""Target p98 at these numbers of streams, on two cores shared with the load generator."""

TAIL_RATIO = 2.0
TAIL_SHARE = 0.8
"""Limit of p98 over median, up to this share of the capacity: the tail must not grow before the knee."""


class Capacity(msgspec.Struct, frozen=True):
    """The result document."""

    comparison: Comparison
    bars: tuple[Criterion, ...]
    stream_s: float | None


def carried(levels: Sequence[LevelReport]) -> int:
    """Return the highest level up to which all meet the objective without faults; 0 if none does."""
    most = 0
    for level in sorted(levels, key=lambda level: level.streams):
        chunk = level.chunk_latency_ms
        if chunk is None or chunk.p98 > OBJECTIVE_MS or faults(level) or level.refused:
            break
        most = level.streams
    return most


def judge(levels: Sequence[LevelReport]) -> list[Criterion]:
    """Return the criteria of a policy: latency at levels with a target, tail, and transcripts."""
    bars = []
    for level in levels:
        chunk, wanted_ms = level.chunk_latency_ms, WANTED_MS.get(level.streams)
        if wanted_ms is not None:
            bars.append(Criterion(f"p98 at {level.streams} streams", wanted_ms, chunk.p98 if chunk else None, "ms"))
    most = carried(levels)
    for level in levels:
        chunk = level.chunk_latency_ms
        if chunk is not None and level.streams <= TAIL_SHARE * most:
            bars.append(
                Criterion(f"p98 over median at {level.streams} streams", TAIL_RATIO, round(chunk.p98 / chunk.p50, 2))
            )
    counted = [level for level in levels if level.streams <= most]
    bars.append(Criterion("streams that failed, to the capacity", 0, sum(level.failed for level in counted)))
    differ = sum(level.mismatched for level in counted) if any(level.compared for level in counted) else None
    bars.append(Criterion("transcripts that differ, to the capacity", 0, differ))
    return bars


def markdown(found: Capacity, picture: str) -> str:
    """Return the page."""
    comparison = found.comparison
    lines = ["# Capacity", "", f"`{comparison.command}`", ""]
    lines += [f"{line}  " for line in ceiling_lines(comparison.ceiling)]
    how = "one recording each" if found.stream_s is None else f"of about {found.stream_s:g} s, one connection each"
    lines += ["", f"Live streams {how}; latency in ms from the scheduled send of a step's last sample. Sustained: the "]
    lines[-1] += f"highest level with p98 ≤ {OBJECTIVE_MS:g} ms and nothing failed, refused or different."
    most = {policy: carried(document.levels) for policy, document in comparison.runs.items()}
    base = next(iter(most.values()))
    rows = [(name, str(streams), f"{base / streams:.1f}×" if streams else "–") for name, streams in most.items()]
    lines += ["", *pages.table(("policy", "streams sustained", "ratio"), rows), "", *table(found.bars), ""]
    lines += [*pages.table(headings(comparison), level_table(comparison), "---"), "", *_split_lines(comparison), ""]
    place = next(iter(comparison.runs.values())).environment
    return "\n".join([*lines, *place_lines(place), "", f"![latency and batch sizes against load]({picture})", ""])


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Plot percentiles and distributions of the latency, and batch sizes by load for the first policy."""
    first = next(iter(results))
    with plot.picture(path, 1, 3, (16, 4.4)) as (left, middle, right):
        plot.percentiles(left, results, ("p98",))
        left.axhline(OBJECTIVE_MS, color="black", linewidth=0.8, linestyle=":")
        plot.distributions(middle, {first: results[first]})
        _batch_sizes(right, results[first].document.levels)
        right.set_title(f"batch sizes, {first}", fontsize="medium")


def _batch_sizes(axes: Axes, levels: Sequence[LevelReport]) -> None:
    """Plot a bar per level with the shares of batches by number of rows. Source: Deep Speech 2, §7."""
    shown = [level for level in levels if level.server.batch_sizes]
    edges = sorted({edge for level in shown for edge, count in (level.server.batch_sizes or {}).items() if count})
    bottoms = [0.0] * len(shown)
    for number, edge in enumerate(edges):
        shares = []
        for level in shown:
            sizes = level.server.batch_sizes or {}
            shares.append(sizes.get(edge, 0) / max(1, sum(sizes.values())))
        color = f"C{number}" if number < 10 else "black"
        label = f"≤ {edge} rows"
        axes.bar([str(level.streams) for level in shown], shares, bottom=bottoms, color=color, label=label)
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    axes.set(xlabel="live streams", ylabel="share of batches", ylim=(0, 1))
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), reverse=True)


def _split_lines(comparison: Comparison) -> list[str]:
    """Return a table of the parts of the latency for the first policy: of all results, and of the slowest."""
    policy, document = next(iter(comparison.runs.items()))
    rows = []
    for level in document.levels:
        if level.parts is not None:
            for which, parts in (("all", level.parts.every), ("slowest 2 %", level.parts.slowest)):
                rows.append((str(level.streams), which, *(f"{each:.2f}" for each in msgspec.structs.astuple(parts))))
    names = ("streams", "results", *(field.name for field in msgspec.structs.fields(Parts)))
    explained = (
        "opening: due before the handshake was complete; generator: sent late; rest: sockets and both event loops"
    )
    return [f"Parts of the latency with policy {policy}, mean ms ({explained}):", "", *pages.table(names, rows)]
