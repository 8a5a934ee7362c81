"""`make bench`: the same load on our own server under one policy, or one decoder, after another, side by side."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.ceiling import Ceiling, measure_ceiling
from loadtest.criteria import carry_out
from loadtest.generator.latencies import Spread
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings, parse_streams
from loadtest.measurement import plot
from loadtest.measurement.report import Document, Result, faults, print_remarks
from loadtest.measurement.run import EXIT_BAD, EXIT_INTERRUPTED, EXIT_OK, measure
from loadtest.served import served

RESULTS = Path(__file__).parent / "results"
POLICIES = "eager,single"


def compare(
    settings: LoadSettings,
    values: Sequence[str],
    *,
    name: str,
    command: str,
    vary: str = "policy",
    folder: Path = RESULTS,
    ceiling: Callable[[], Ceiling | None] = measure_ceiling,
    serve_options: Sequence[str] = (),
) -> int:
    """Print the ceiling, load a server with each value of the option, show them side by side; returns the exit code.

    `settings.url` is replaced by that of each server. A fault of the first makes the exit code bad; the others are
    baselines, which may break under a load that the first one carries.
    """
    console = Console(stderr=True)
    bare = ceiling()
    for line in ceiling_lines(bare):
        console.print(line, highlight=False)
    results = measure_each(settings, values, vary, serve_options, console)
    comparison = Comparison(command, bare, {value: result.document for value, result in results.items()}, vary)
    print_comparison(comparison, console)
    for path in write(comparison, results, folder, name):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    typer.echo(msgspec.json.encode(comparison).decode())
    documents = list(comparison.runs.values())
    if documents[-1].interrupted:
        return EXIT_INTERRUPTED
    return EXIT_BAD if any(faults(level) for level in documents[0].levels) else EXIT_OK


def measure_each(
    settings: LoadSettings, values: Sequence[str], vary: str, serve_options: Sequence[str], console: Console
) -> dict[str, Result]:
    """Start a server with each value in turn and measure all levels on it. Raises: LoadTestError, ClientError."""
    results: dict[str, Result] = {}
    for value in values:
        console.print(f"{vary} {value}", style="bold")
        with served([f"--{vary}", value, *serve_options]) as url:
            results[value] = measure(replace(settings, url=url, policy_label=value), tell=console.print)
        if results[value].document.interrupted:
            break
    return results


def main(
    *,
    streams: Annotated[str, typer.Option(help="Levels: numbers of live streams, with commas.")] = "10,50,100,200",
    seconds: Annotated[float, typer.Option(help="Measured seconds of each level.")] = 20.0,
    vary: Annotated[
        str, typer.Option(help="The option of `tutti serve` to vary: policy, decoder, beams, …")
    ] = "policy",
    policies: Annotated[
        str, typer.Option("--policies", "--values", help="Its values, the one to judge first.")
    ] = POLICIES,
    name: Annotated[str, typer.Option(help="Files are written to loadtest/results/NAME.*")] = "policies",
    manifest: Annotated[Path | None, typer.Option(help="JSON lines; default: the shipped recordings.")] = None,
    seed: Annotated[int, typer.Option(help="Decides starts and recordings.")] = 1,
    serve_option: Annotated[list[str] | None, typer.Option(help="Passed on to `tutti serve`; repeatable.")] = None,
) -> None:
    """Load the server under each policy, or other option, with the same streams; show the figures side by side."""
    command = shlex.join(["python", "-m", "loadtest.compare", *sys.argv[1:]])

    def work() -> int:
        settings = LoadSettings(url="", streams=parse_streams(streams), seconds=seconds, manifest=manifest, seed=seed)
        values, options = policies.split(","), serve_option or ()
        return compare(settings, values, name=name, command=command, vary=vary, serve_options=options)

    carry_out("compare", work)


if __name__ == "__main__":
    typer.run(main)


HEADINGS = (
    "streams",
    "policy",
    "p50",
    "p98",
    "p99",
    "p98 ratio",
    "final p98",
    "batch",
    "decoding",
    "cores",
    "compared",
    "bad",
)


class Comparison(msgspec.Struct, frozen=True):
    """Documents by policy, or by the option `vary`; the first is the one that the others are measured against."""

    command: str
    ceiling: Ceiling | None
    runs: dict[str, Document]
    vary: str = "policy"


def table(comparison: Comparison) -> list[tuple[str, ...]]:
    """A row per level and policy; the ratio is to the first policy's p98 at the same level."""
    documents = list(comparison.runs.items())
    rows: list[tuple[str, ...]] = []
    for number, base in enumerate(documents[0][1].levels):
        for policy, document in documents:
            if number < len(document.levels):
                rows.append(_row(policy, document.levels[number], base))
    return rows


def headings(comparison: Comparison) -> tuple[str, ...]:
    """Those of `table`."""
    return (HEADINGS[0], comparison.vary, *HEADINGS[2:])


def markdown(comparison: Comparison, name: str, picture: str) -> str:
    """The comparison as a page."""
    lines = [f"# {name}", "", f"`{comparison.command}`", ""]
    lines += [f"{line}  " for line in ceiling_lines(comparison.ceiling)]
    lines += ["", "Chunk and final latency in ms, from the scheduled send of a step's last sample.  "]
    lines += ["Decoding: its share of one core; cores: those that the whole server took.", ""]
    lines += ["| " + " | ".join(headings(comparison)) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row) + " |" for row in table(comparison)]
    place = next(iter(comparison.runs.values())).environment
    versions = ", ".join(f"{package} {version}" for package, version in place.versions.items())
    lines += ["", f"{place.hardware}, {place.cores} cores, Python {place.python}, {versions}."]
    lines += [f"Commit {place.commit}, seed {place.seed}, {place.date}.", "", f"![latencies]({picture})", ""]
    return "\n".join(lines)


def ceiling_lines(ceiling: Ceiling | None) -> list[str]:
    """The bare step times, and the streams that they would allow."""
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
    """The rows with aligned columns, then what is wrong with them."""
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


def write(comparison: Comparison, results: Mapping[str, Result], folder: Path, name: str) -> list[Path]:
    """Write NAME.json, NAME.md and NAME.png; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    document, page, picture = (folder / f"{name}.{suffix}" for suffix in ("json", "md", "png"))
    document.write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
    page.write_text(markdown(comparison, name, picture.name), encoding="utf-8")
    plot.draw(results, picture)
    return [document, page, picture]


def _row(policy: str, level: LevelReport, base: LevelReport) -> tuple[str, ...]:
    chunk, final = level.chunk_latency_ms, level.final_latency_ms
    bad = level.failed + level.mismatched + level.refused
    batch, decoding, cores = level.server.mean_batch, level.server.decode_cores, level.server.cpu_cores
    return (
        str(level.streams),
        policy,
        *(_ms(chunk, name) for name in ("p50", "p98", "p99")),
        _ratio(chunk, base.chunk_latency_ms),
        _ms(final, "p98"),
        "–" if batch is None else f"{batch:.1f}",
        "–" if decoding is None else f"{decoding:.1%}",
        "–" if cores is None else f"{cores:.2f}",
        str(level.compared),
        str(bad),
    )


def _ms(spread: Spread | None, name: str) -> str:
    return "–" if spread is None else f"{getattr(spread, name):.1f}"


def _ratio(spread: Spread | None, base: Spread | None) -> str:
    return "–" if spread is None or base is None or not base.p98 else f"{spread.p98 / base.p98:.1f}×"
