"""Report of a ruler: each figure with the two points between which it is measured; table, CSV, JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.measurement.report import LAG_WARNING_MS
from loadtest.reports.environment import Environment
from loadtest.reports.pages import number
from loadtest.rulers.settings import Ruler

PERCENTILES = (50, 95, 99)
OCCASIONAL = ("taken-back",)  # figures of events that need not occur


class Figure(msgspec.Struct, frozen=True):
    """One figure: percentiles by linear interpolation, maximum and mean, in ms; None without measurements."""

    name: str
    starts: str
    ends: str
    count: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None


class RulerLevel(msgspec.Struct, frozen=True):
    """The figures at one number of live streams."""

    streams: int
    recordings: int  # measured ones
    failed: int  # recordings that gave no measurement
    figures: tuple[Figure, ...]
    problems: dict[str, int]
    generator_lag_p99_ms: float | None  # of the sends after their due times
    generator_cpu_cores: float
    generator_lag_max_ms: float | None = None


class RulerDocument(msgspec.Struct, frozen=True):
    """The JSON document of a ruler."""

    ruler: Ruler
    levels: tuple[RulerLevel, ...]
    distinct_recordings: int
    environment: Environment
    notes: tuple[str, ...] = ()

    def encoded(self) -> str:
        """Return one line of JSON."""
        return msgspec.json.encode(self).decode()


def figure(name: str, starts: str, ends: str, seconds: Sequence[float]) -> Figure:
    """Return the figure of these measurements."""
    if not seconds:
        return Figure(name, starts, ends, 0)
    p50, p95, p99 = np.percentile(np.asarray(seconds, np.float64), PERCENTILES)  # linear interpolation
    ms = [round(float(value) * 1e3, 1) for value in (p50, p95, p99, max(seconds), np.mean(seconds))]
    return Figure(name, starts, ends, len(seconds), *ms)


def faults(level: RulerLevel) -> list[str]:
    """Return the faults of a level; empty if its figures are valid."""
    missing = [f"{level.failed} recordings without a measurement"] if level.failed else []
    empty = [one for one in level.figures if not one.count and one.name not in OCCASIONAL]
    return missing + [f"{one.name}: nothing was measured from {one.starts} to {one.ends}" for one in empty]


COLUMNS = ("streams", "figure", "starts at", "ends at", "p50", "p95", "p99", "max", "mean", "count")

SHOWN = tuple(name for name in COLUMNS if not name.endswith(" at"))  # the others are lines below the table


def rows(document: RulerDocument) -> list[tuple[str, ...]]:
    """Return a row for each figure of each level; times in ms."""
    listed = []
    for level in document.levels:
        for one in level.figures:
            values = (number(value) for value in (one.p50, one.p95, one.p99, one.max, one.mean))
            listed.append((str(level.streams), one.name, one.starts, one.ends, *values, str(one.count)))
    return listed


def as_csv(document: RulerDocument) -> str:
    """Return the rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(document))
    return text.getvalue()


def print_table(document: RulerDocument, console: Console) -> None:
    """Print the rows, then remarks on each level."""
    table = Table(title=f"{document.ruler}, ms; {document.distinct_recordings} recordings", title_justify="left")
    for name in SHOWN:
        table.add_column(name, justify="left" if name == "figure" else "right")
    for row in rows(document):
        table.add_row(*(cell for cell, name in zip(row, COLUMNS, strict=True) if name in SHOWN))
    console.print(table)
    for name, starts, ends in dict.fromkeys((row[1], row[2], row[3]) for row in rows(document)):
        console.print(f"{name}: from {starts} to {ends}", highlight=False, markup=False)
    for level in document.levels:
        _print_remarks(level, console)
    for note in document.notes:
        console.print(note, highlight=False)
    console.print(document.environment.summary, style="dim", highlight=False, soft_wrap=True)


def _print_remarks(level: RulerLevel, console: Console) -> None:
    for fault in faults(level):
        console.print(f"{level.streams} streams: {fault}", style="red", highlight=False)
    for problem, count in level.problems.items():
        console.print(f"  {count} × {problem}", highlight=False, markup=False)
    lag_ms = level.generator_lag_p99_ms
    if lag_ms is None:
        return
    late = f"sends late by p99 {lag_ms:.1f} ms, at most {level.generator_lag_max_ms or lag_ms:.1f} ms"
    used = f"{level.streams} streams: generator: {level.generator_cpu_cores:.2f} of a core, {late}"
    console.print(used, style="dim", highlight=False)
    if lag_ms > LAG_WARNING_MS:
        line = f"{level.streams} streams: the generator was late: p99 {lag_ms:.1f} ms; the figures include this"
        console.print(line, style="yellow", highlight=False)
