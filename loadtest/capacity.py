"""Capacity of one machine in live streams: latency, batch sizes and the knee, by policy or by another option.

`make bench` runs `python -m loadtest.capacity`, which writes `loadtest/results/capacity.json`, `.md` and `.png`. With
`--vary beams --values 64,128` the same load runs on a server with each value of that option.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from loadtest import program
from loadtest.errors import BadSettings
from loadtest.generator.measures import LevelReport
from loadtest.generator.parts import Parts
from loadtest.generator.settings import SHORTEST_STREAM_S, STEP_S, LoadSettings, parse_streams
from loadtest.measurement import plot
from loadtest.measurement.report import Document, Result, faults, print_remarks
from loadtest.measurement.run import measure
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.pages import percentile, place_lines
from loadtest.served import ROOT, served

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = "10,50,100,200,300,400,500,600"
SPARE = 64
"""Slots above the highest level, since an ending stream and its successor overlap briefly."""

GIVE_UP_MS = 1000.0
"""A policy whose p98 is ten times the objective is past its knee; higher levels are skipped."""
OBJECTIVE_MS = 100.0
"""Limit of the p98 chunk latency for a level to count as sustained. Source of the percentile: Deep Speech 2, §7."""

WANTED_MS = {100: 10.0, 300: 25.0, 400: OBJECTIVE_MS}
"""Target p98 at these numbers of streams, on two cores shared with the load generator."""

TAIL_RATIO = 2.0
TAIL_SHARE = 0.8
"""Limit of p98 over median, up to this share of the capacity: the tail must not grow before the knee."""
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
    step_audio_ms: float = STEP_S * 1e3

    def streams(self, batch: int) -> float:
        """Return the live streams possible at this batch size if only steps took time."""
        return batch * self.step_audio_ms / self.step_ms[batch]


class Capacity(msgspec.Struct, frozen=True):
    """The result document: load tests by value of the option `vary`; the first value is judged, and the baseline."""

    command: str
    ceiling: Ceiling | None
    runs: dict[str, Document]
    vary: str
    bars: tuple[Criterion, ...]
    stream_s: float | None


def measure_ceiling() -> Ceiling | None:
    """Measure the bare model step without server and sockets, an upper bound of the figures; None if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            CEILING_COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_WITHIN_S, check=True
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Ceiling, strict=False)
    except (OSError, subprocess.SubprocessError, IndexError, msgspec.DecodeError):
        return None


def parse_seconds(text: str, levels: int) -> tuple[float, ...]:
    """Parse the seconds of each level: one number for all, or one for each.

    Raises: BadSettings.
    """
    try:
        seconds = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise BadSettings(f"--seconds {text}: must be numbers with commas, such as 30,60") from error
    if len(seconds) not in (1, levels):
        raise BadSettings(f"--seconds {text}: must be one number, or {levels}, one for each level")
    return seconds * levels if len(seconds) == 1 else seconds


def carried(levels: Sequence[LevelReport]) -> int:
    """Return the highest level up to which all meet the objective without faults; 0 if none does."""
    most = 0
    for level in sorted(levels, key=lambda level: level.streams):
        chunk = level.chunk_latency_ms
        if chunk is None or chunk.p98 > OBJECTIVE_MS or faults(level) or level.refused:
            break
        most = level.streams
    return most


def judge(levels: Sequence[LevelReport], wanted_ms: Mapping[int, float] = WANTED_MS) -> list[Criterion]:
    """Return the criteria of a policy: latency at levels with a target, tail, and transcripts."""
    bars = []
    for level in levels:
        chunk = level.chunk_latency_ms
        if level.streams in wanted_ms:
            bars.append(
                Criterion(
                    f"p98 at {level.streams} streams", wanted_ms[level.streams], chunk.p98 if chunk else None, "ms"
                )
            )
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


def run(
    settings: LoadSettings,
    values: Sequence[str],
    serve_options: Sequence[str],
    *,
    vary: str = "policy",
    folder: Path,
    name: str,
    command: str,
    ceiling: Callable[[], Ceiling | None] = measure_ceiling,
) -> int:
    """Start a server with each value in turn, measure all levels, print and write; returns the exit code.

    It is bad if the first value misses a criterion; the others are baselines, which may fail under a load that the
    first one sustains. `settings.url` is replaced by the URL of each server. Raises: LoadTestError, ClientError.
    """
    console, bare, results = Console(stderr=True), ceiling(), dict[str, Result]()
    for line in ceiling_lines(bare):
        console.print(line, highlight=False)
    for value in values:
        console.print(f"{vary} {value}", style="bold")
        with served([*serve_options, f"--{vary}", value]) as url:
            results[value] = measure(replace(settings, url=url, policy_label=value), progress=console.print)
        if results[value].document.interrupted:
            break
    runs = {value: result.document for value, result in results.items()}
    bars = tuple(judge(next(iter(runs.values())).levels, wanted_ms=WANTED_MS if vary == "policy" else {}))
    capacity = Capacity(command, bare, runs, vary, bars, settings.stream_s)
    print_levels(capacity, console)
    draw(results, vary, folder / f"{name}.png")
    code = conclude(capacity, bars, markdown(capacity, f"{name}.png"), folder, name)
    return program.EXIT_INTERRUPTED if any(document.interrupted for document in runs.values()) else code


def markdown(capacity: Capacity, picture: str) -> str:
    """Return the page."""
    lines = ["# Capacity", "", f"`{capacity.command}`", ""]
    lines += [f"{line}  " for line in ceiling_lines(capacity.ceiling)]
    stream_s = capacity.stream_s
    how = "one recording each" if stream_s is None else f"of about {stream_s:g} s, one connection each"
    lines += ["", f"Live streams {how}; latency in ms from the scheduled send of a step's last sample. Sustained: the "]
    lines[-1] += f"highest level with p98 ≤ {OBJECTIVE_MS:g} ms and nothing failed, refused or different."
    most = {policy: carried(document.levels) for policy, document in capacity.runs.items()}
    base = next(iter(most.values()))
    rows = [(name, str(streams), f"{base / streams:.1f}×" if streams else "–") for name, streams in most.items()]
    lines += ["", *pages.table((capacity.vary, "streams sustained", "ratio"), rows), "", *table(capacity.bars), ""]
    lines += [*pages.table(headings(capacity), level_rows(capacity), "---"), "", *_split_lines(capacity), ""]
    environment = next(iter(capacity.runs.values())).environment
    return "\n".join([*lines, *place_lines(environment), "", f"![latency and batch sizes against load]({picture})", ""])


def draw(results: Mapping[str, Result], vary: str, path: Path) -> None:
    """Plot percentiles and distributions of the latency, and batch sizes by load for the first value."""
    first = next(iter(results))
    with plot.picture(path, 1, 3, (16, 4.4)) as (left, middle, right):
        plot.percentiles(left, results, ("p98",))
        left.axhline(OBJECTIVE_MS, color="black", linewidth=0.8, linestyle=":")
        plot.distributions(middle, first, results[first])
        _batch_sizes(right, results[first].document.levels)
        right.set_title(f"batch sizes, {vary} {first}", fontsize="medium")


def _batch_sizes(axes: Axes, levels: Sequence[LevelReport]) -> None:
    """Plot a bar per level with the shares of batches by number of rows. Source: Deep Speech 2, §7."""
    batched = [level for level in levels if level.server.batch_sizes]
    edges = sorted({edge for level in batched for edge, count in (level.server.batch_sizes or {}).items() if count})
    bottoms = [0.0] * len(batched)
    for number, edge in enumerate(edges):
        shares = []
        for level in batched:
            sizes = level.server.batch_sizes or {}
            shares.append(sizes.get(edge, 0) / max(1, sum(sizes.values())))
        color = f"C{number}" if number < 10 else "black"
        label = f"≤ {edge} rows"
        axes.bar([str(level.streams) for level in batched], shares, bottom=bottoms, color=color, label=label)
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    axes.set(xlabel="live streams", ylabel="share of batches", ylim=(0, 1))
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), reverse=True)


def _split_lines(capacity: Capacity) -> list[str]:
    """Return a table of the parts of the latency for the first value: of all results, and of the slowest."""
    value, document = next(iter(capacity.runs.items()))
    rows = []
    for level in document.levels:
        if level.parts is not None:
            for which, parts in (("all", level.parts.every), ("slowest 2 %", level.parts.slowest)):
                rows.append((str(level.streams), which, *(f"{ms:.2f}" for ms in msgspec.structs.astuple(parts))))
    names = ("streams", "results", *(field.name for field in msgspec.structs.fields(Parts)))
    explained = (
        "opening: due before the handshake was complete; generator: sent late; rest: sockets and both event loops"
    )
    return [f"Parts of the latency with {capacity.vary} {value}, mean ms ({explained}):", "", *pages.table(names, rows)]


def level_rows(capacity: Capacity) -> list[tuple[str, ...]]:
    """Return a row per level and value; the ratio is to the first value's p98 at the same level."""
    documents = list(capacity.runs.items())
    rows: list[tuple[str, ...]] = []
    for number, base in enumerate(documents[0][1].levels):
        for value, document in documents:
            if number < len(document.levels):
                rows.append(_row(value, document.levels[number], base))
    return rows


def headings(capacity: Capacity) -> tuple[str, ...]:
    """Return the headings of `level_rows`."""
    return (HEADINGS[0], capacity.vary, *HEADINGS[2:])


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


def print_levels(capacity: Capacity, console: Console) -> None:
    """Print the rows in aligned columns, then the faults of each level."""
    rows = [headings(capacity), *level_rows(capacity)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        line = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for value, document in capacity.runs.items():
        for level in document.levels:
            if faults(level):
                console.print(f"{value}:", highlight=False)
                print_remarks(level, console)


def _row(value: str, level: LevelReport, base: LevelReport) -> tuple[str, ...]:
    chunk, server = level.chunk_latency_ms, level.server
    ratio = chunk.p98 / base.chunk_latency_ms.p98 if chunk and base.chunk_latency_ms else None
    return (
        str(level.streams),
        value,
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
    streams: program.Levels = LEVELS,
    seconds: Annotated[str, typer.Option(help="Seconds measured: one number, or one for each level.")] = "60",
    vary: Annotated[str, typer.Option(help="Option of `tutti serve` to vary: policy, beams, …")] = "policy",
    policies: Annotated[
        str,
        typer.Option(
            "--policies", "--values", help="Values with commas; only the first is judged, the others are baselines."
        ),
    ] = "eager,deadline,single",
    stream_s: Annotated[
        float, typer.Option(help="Approximate length of a stream, seconds; 0: one recording each.")
    ] = 15.0,
    decoder: Annotated[str, typer.Option(help="Decoder, as for `tutti serve`.")] = "greedy",
    name: program.ResultName = "capacity",
    manifest: program.Manifest = None,
    serve_option: program.ServeOptions = None,
    seed: program.Seed = 1,
    folder: program.Folder = program.RESULTS,
) -> None:
    """Load a server with increasing numbers of streams for each value; judge latency, tail and capacity."""

    def work(command: str) -> int:
        levels = parse_streams(streams)
        level_seconds = parse_seconds(seconds, len(levels))
        settings = LoadSettings(
            url="",
            streams=levels,
            level_seconds=level_seconds,
            manifest=manifest,
            seed=seed,
            stream_s=min(stream_s, max(SHORTEST_STREAM_S, min(level_seconds) / 2)) or None,  # so that some end
            give_up_ms=GIVE_UP_MS,
            split=True,
        )
        options = ["--decoder", decoder, "--max-streams", str(max(levels) + SPARE), *(serve_option or ())]
        values = policies.split(",")
        return run(settings, values, options, vary=vary, folder=folder, name=name, command=command)

    program.carry_out("loadtest.capacity", work)


if __name__ == "__main__":
    typer.run(main)
