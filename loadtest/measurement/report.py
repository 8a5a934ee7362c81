"""Result of a load test, as a JSON document and as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.measures import LevelReport
from loadtest.reports.environment import Environment
from loadtest.reports.pages import number, percentile

PERCENTILE_NAMES = ("p50", "p90", "p95", "p98", "p99", "max")

LAG_WARNING_MS = 5.0
"""Lag of sends at p99 above which the generator distorts the results: a quarter of the 20 ms objective."""


class Document(msgspec.Struct, frozen=True):
    """The JSON document printed as the last line with `--json`."""

    levels: tuple[LevelReport, ...]
    environment: Environment
    interrupted: bool = False

    def encoded(self) -> str:
        """Return one line of JSON."""
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True, slots=True)
class Result:
    """The document, each level's distribution as (ms, share at or below), and latencies by minute."""

    document: Document
    cdfs: tuple[tuple[tuple[float, float], ...], ...]
    minutes: tuple[tuple[Latencies, ...], ...] = ()


def faults(level: LevelReport) -> list[str]:
    """Return the faults of a level's result; empty if it is valid."""
    remarks = []
    if level.failed:
        remarks.append(f"{level.failed} failed")
    if level.mismatched:
        remarks.append(f"{level.mismatched} of {level.compared} transcripts differ from those without load")
    if level.unanswered:
        remarks.append(f"{level.unanswered} steps without a result")
    if not level.steps:
        remarks.append("no step was measured")
    return remarks


def warnings(level: LevelReport) -> list[str]:
    """Return reasons to doubt a level's figures that are not the server's fault."""
    remarks = []
    lag = level.generator_lag_ms
    if lag is not None and lag.p99 > LAG_WARNING_MS:
        remarks.append(f"the load generator was late: p99 {lag.p99:.1f} ms; latencies include this")
    if level.uploads is not None and level.uploads.failed:
        remarks.append(f"{level.uploads.failed} uploads failed")
    if level.steps and not level.compared:
        remarks.append("no recording completed, so no transcript was compared: increase --seconds")
    if level.refused:
        remarks.append(f"{level.refused} handshakes refused: fewer streams than requested")
    return remarks


def print_table(document: Document, console: Console) -> None:
    """Print the levels in one table, then their warnings and problems."""
    table = Table("live streams", title="latency from the scheduled send, ms", title_justify="left")
    for level in document.levels:
        table.add_column(str(level.streams), justify="right")
    for name, cell in ROWS:
        table.add_row(name, *(cell(level) for level in document.levels))
    console.print(table)
    for level in document.levels:
        print_minutes(level, console)
        print_remarks(level, console)
    console.print(document.environment.summary, style="dim", highlight=False, soft_wrap=True)


def print_minutes(level: LevelReport, console: Console) -> None:
    """Print the first and the last minute of a level of several minutes."""
    for name, minute in (("first", level.minutes[0]), ("last", level.minutes[-1])) if level.minutes else ():
        p50, p98 = (percentile(minute.chunk_latency_ms, at) for at in ("p50", "p98"))
        latency, memory = f"chunk p50 {p50}, p98 {p98} ms", f"memory {number(minute.server.memory_mib)} MiB"
        console.print(f"{level.streams} streams, {name} minute: {latency}, {memory}", highlight=False)


def print_remarks(level: LevelReport, console: Console) -> None:
    """Print the faults, warnings, problems and mismatches of a level."""
    for fault in faults(level):
        console.print(f"{level.streams} streams: {fault}", style="red", highlight=False)
    for warning in warnings(level):
        console.print(f"{level.streams} streams: {warning}", style="yellow", highlight=False)
    for problem, count in level.problems.items():
        console.print(f"  {count} × {problem}", highlight=False, markup=False)
    for mismatch in level.mismatches:
        console.print(f"  {mismatch.recording}:", highlight=False, markup=False)
        console.print(f"    alone:      {mismatch.alone}", highlight=False, markup=False)
        console.print(f"    under load: {mismatch.under_load}", highlight=False, markup=False)


def _of(spread: Callable[[LevelReport], Spread | None], name: str) -> Callable[[LevelReport], str]:
    return lambda level: percentile(spread(level), name)


ROWS: Sequence[tuple[str, Callable[[LevelReport], str]]] = (
    *((f"chunk {name}", _of(lambda level: level.chunk_latency_ms, name)) for name in PERCENTILE_NAMES),
    *((f"final {name}", _of(lambda level: level.final_latency_ms, name)) for name in ("p50", "p98", "max")),
    ("queue wait, mean", _of(lambda level: level.queue_wait_ms, "mean")),
    ("step, mean", _of(lambda level: level.step_ms, "mean")),
    ("handover, mean", _of(lambda level: level.handover_ms, "mean")),
    ("decode, mean", _of(lambda level: level.decode_ms, "mean")),
    ("write, mean", _of(lambda level: level.write_ms, "mean")),
    ("batch, mean rows", lambda level: number(level.server.mean_batch)),
    ("server, cores", lambda level: number(level.server.cpu_cores, ".2f")),
    ("of it decoding", lambda level: number(level.server.decode_cores, ".3f")),
    ("server memory, MiB", lambda level: number(level.server.memory_mib, ".0f")),
    ("generator, cores", lambda level: number(level.generator_cpu_cores, ".2f")),
    ("generator lag p99", _of(lambda level: level.generator_lag_ms, "p99")),
    ("audio s per s", lambda level: number(level.audio_s_per_s)),
    ("steps", lambda level: str(level.steps)),
    ("compared", lambda level: str(level.compared)),
    ("mismatched", lambda level: str(level.mismatched)),
    ("refused", lambda level: str(level.refused)),
    ("refusal p98", _of(lambda level: level.refusals.answer_ms if level.refusals else None, "p98")),
    ("uploaded, audio s per s", lambda level: number(level.uploads.audio_s_per_s if level.uploads else None)),
    ("failed", lambda level: str(level.failed)),
)
"""Lines of the table: name, and function that returns the cell of a level."""
