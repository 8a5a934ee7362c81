"""`make bench`: the same load on our server with different policies or another option, compared in one table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest import program
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import STEP_S, LoadSettings, parse_streams
from loadtest.measurement import plot
from loadtest.measurement.report import Document, Result, faults, print_remarks
from loadtest.measurement.run import measure
from loadtest.reports import pages
from loadtest.reports.pages import percentile, place_lines
from loadtest.served import served

POLICIES = "eager,single"
HEADINGS = (
    "streams", "policy", "p50", "p98", "p99", "p98 ratio", "final p98", "batch", "decoding", "cores", "compared", "bad",
)  # fmt: skip


CEILING_COMMAND = (sys.executable, "-m", "server.cli", "ceiling", "--json")
"""The last line of its output is a `Ceiling` as JSON."""

CEILING_WITHIN_S = 180.0


class Ceiling(msgspec.Struct, frozen=True):
    """Median time of a model step in ms by batch size, and time of one read of its weights in ns."""

    step_ms: dict[int, float]
    precision: str = ""
    threads: int = 0
    read_ns: float | None = None
    in_caches: bool | None = None

    def streams(self, batch: int) -> float:
        """Return the live streams possible at this batch size if only steps took time."""
        return batch * STEP_S * 1e3 / self.step_ms[batch]


class Comparison(msgspec.Struct, frozen=True):
    """Documents by policy, or by value of the option `vary`; the first value is compared with the others."""

    command: str
    ceiling: Ceiling | None
    runs: dict[str, Document]
    vary: str = "policy"


def measure_ceiling() -> Ceiling | None:
    """Measure the bare model step without server and sockets, an upper bound of the figures; None if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            CEILING_COMMAND,
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            timeout=CEILING_WITHIN_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Ceiling, strict=False)
    except (OSError, subprocess.SubprocessError, IndexError, msgspec.DecodeError):
        return None


def compare(
    settings: LoadSettings,
    values: Sequence[str],
    *,
    name: str,
    command: str,
    vary: str = "policy",
    folder: Path = program.RESULTS,
    ceiling: Callable[[], Ceiling | None] = measure_ceiling,
    serve_options: Sequence[str] = (),
) -> int:
    """Measure each value, write and plot the comparison; returns the exit code.

    Only faults of the first value make the exit code bad: the others are baselines, which may fail under a load that
    the first one sustains.
    """
    console = Console(stderr=True)
    comparison, results = measure_each(
        settings, values, vary=vary, serve_options=serve_options, command=command, ceiling=ceiling, console=console
    )
    plot.draw(results, folder / f"{name}.png")
    written = pages.write(comparison, markdown(comparison, name, f"{name}.png"), folder, name)
    pages.show_written(comparison, [*written, folder / f"{name}.png"])
    documents = list(comparison.runs.values())
    if documents[-1].interrupted:
        return program.EXIT_INTERRUPTED
    return program.EXIT_BAD if any(faults(level) for level in documents[0].levels) else program.EXIT_OK


def measure_each(
    settings: LoadSettings,
    values: Sequence[str],
    *,
    serve_options: Sequence[str],
    command: str,
    console: Console,
    vary: str = "policy",
    ceiling: Callable[[], Ceiling | None] = measure_ceiling,
) -> tuple[Comparison, dict[str, Result]]:
    """Print the ceiling, start a server with each value in turn, measure all levels, print the comparison.

    `settings.url` is replaced by the URL of each server. Raises: LoadTestError, ClientError.
    """
    bare = ceiling()
    for line in ceiling_lines(bare):
        console.print(line, highlight=False)
    results: dict[str, Result] = {}
    for value in values:
        console.print(f"{vary} {value}", style="bold")
        with served([f"--{vary}", value, *serve_options]) as url:
            results[value] = measure(replace(settings, url=url, policy_label=value), progress=console.print)
        if results[value].document.interrupted:
            break
    comparison = Comparison(command, bare, {value: result.document for value, result in results.items()}, vary)
    print_comparison(comparison, console)
    return comparison, results


def table(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row per level and policy; the ratio is to the first policy's p98 at the same level."""
    documents = list(comparison.runs.items())
    rows: list[tuple[str, ...]] = []
    for number, base in enumerate(documents[0][1].levels):
        for policy, document in documents:
            if number < len(document.levels):
                rows.append(_row(policy, document.levels[number], base))
    return rows


def headings(comparison: Comparison) -> tuple[str, ...]:
    """Return the headings of `table`."""
    return (HEADINGS[0], comparison.vary, *HEADINGS[2:])


def markdown(comparison: Comparison, name: str, picture: str) -> str:
    """Return the comparison as a page."""
    lines = [f"# {name}", "", f"`{comparison.command}`", ""]
    lines += [f"{line}  " for line in ceiling_lines(comparison.ceiling)]
    lines += ["", "Chunk and final latency in ms, from the scheduled send of a step's last sample.  "]
    lines += ["Decoding: share of one core; cores: CPU time of the whole server per second.", ""]
    lines += pages.table(headings(comparison), table(comparison), "---")
    place = next(iter(comparison.runs.values())).environment
    return "\n".join([*lines, "", *place_lines(place), "", f"![latencies]({picture})", ""])


def ceiling_lines(ceiling: Ceiling | None) -> list[str]:
    """Return lines with the bare step times and the streams that they allow."""
    if ceiling is None:
        return ["Ceiling: not measured."]
    how = ", ".join(
        part for part in (ceiling.precision, f"{ceiling.threads} threads" if ceiling.threads else "") if part
    )
    lines = [f"Ceiling: bare model step{f' ({how})' if how else ''}"]
    for batch, step_ms in sorted(ceiling.step_ms.items()):
        lines.append(f"batch {batch}: {step_ms:.2f} ms, {ceiling.streams(batch):.0f} streams")
    if ceiling.read_ns is not None:
        where = "from the caches" if ceiling.in_caches else "from memory, so steps are slow"
        lines.append(f"a read of the weights: {ceiling.read_ns:.0f} ns, {where}")
    return lines


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the rows in aligned columns, then the faults of each level."""
    rows = [headings(comparison), *table(comparison)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        line = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for policy, document in comparison.runs.items():
        for level in document.levels:
            if faults(level):
                console.print(f"{policy}:", highlight=False)
                print_remarks(level, console)


def _row(policy: str, level: LevelReport, base: LevelReport) -> tuple[str, ...]:
    chunk, server = level.chunk_latency_ms, level.server
    ratio = chunk.p98 / base.chunk_latency_ms.p98 if chunk and base.chunk_latency_ms else None
    return (
        str(level.streams),
        policy,
        *(percentile(chunk, name) for name in ("p50", "p98", "p99")),
        "–" if ratio is None else f"{ratio:.1f}×",
        percentile(level.final_latency_ms, "p98"),
        pages.number(server.mean_batch),
        pages.number(server.decode_cores, ".1%"),
        pages.number(server.cpu_cores, ".2f"),
        str(level.compared),
        str(level.failed + level.mismatched + level.refused),
    )


def main(
    *,
    streams: program.Levels = "10,50,100,200",
    seconds: Annotated[float, typer.Option(help="Seconds measured at each level.")] = 20.0,
    vary: Annotated[str, typer.Option(help="Option of `tutti serve` to vary: policy, decoder, beams, …")] = "policy",
    policies: Annotated[
        str,
        typer.Option(
            "--policies", "--values", help="Values with commas; only the first is judged, the others are baselines."
        ),
    ] = POLICIES,
    name: program.ResultName = "policies",
    manifest: program.Manifest = None,
    seed: program.Seed = 1,
    serve_option: program.ServeOptions = None,
) -> None:
    """Load a server with each policy, or each value of another option, by the same streams, and compare."""

    def work(command: str) -> int:
        settings = LoadSettings(url="", streams=parse_streams(streams), seconds=seconds, manifest=manifest, seed=seed)
        values, options = policies.split(","), serve_option or ()
        return compare(settings, values, name=name, command=command, vary=vary, serve_options=options)

    program.carry_out("loadtest.compare", work)


if __name__ == "__main__":
    typer.run(main)
