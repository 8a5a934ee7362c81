"""Throughput against latency: p98 against core-seconds for an hour of audio, for each policy at several loads.

`python -m tutti_asr_lab.benchmarks.tradeoff --published DIR` measures our network and the published one in DIR, and
writes `loadtest/results/tradeoff.json`, `.md` and `.png`. Loads that a policy does not carry are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from batching.batcher import Policy
from loadtest import program
from loadtest.errors import BadSettings
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import SHORTEST_STREAM_S, LoadSettings, parse_streams
from loadtest.measurement import plot
from loadtest.measurement.report import Document, faults
from loadtest.measurement.run import measure
from loadtest.reports import pages
from loadtest.served import ALL_IN, ONE_PROCESS, served

NAME = "tradeoff"
POLICIES = (Policy.SINGLE.value, Policy.EAGER.value, Policy.DEADLINE.value)
GIVE_UP_MS = 300.0
"""A policy whose p98 is above this at a load does not carry it; higher loads are skipped."""

OURS, PUBLISHED = "tutti-small", "published"


class Run(msgspec.Struct, frozen=True):
    """Levels of one network under one policy."""

    network: str
    policy: str
    document: Document


class Tradeoff(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    runs: tuple[Run, ...]


class Load(msgspec.Struct, frozen=True):
    """Processor time and latency of a server that carries this many streams."""

    streams: int
    core_s_per_hour: float
    """Core-seconds of the server for an hour of a live stream: each sends in real time, one recording after another."""
    p98_ms: float


def loads(run: Run) -> list[Load]:
    """Return the loads that the server carried: nothing refused, failed or different, and p98 below the limit."""
    return [load for level in run.document.levels if (load := _load(level)) is not None]


def _load(level: LevelReport) -> Load | None:
    chunk, cores = level.chunk_latency_ms, level.server.cpu_cores
    if faults(level) or level.refused or chunk is None or cores is None or chunk.p98 > GIVE_UP_MS:
        return None
    return Load(level.streams, cores * 3600 / level.streams, chunk.p98)


def table(found: Tradeoff) -> list[str]:
    """Return the lines of the table: a row for each network and load, core-seconds and p98 for each policy."""
    carried = {(run.network, run.policy, load.streams): load for run in found.runs for load in loads(run)}
    policies = list(dict.fromkeys(run.policy for run in found.runs))
    networks = list(dict.fromkeys(run.network for run in found.runs))
    levels = {(networks.index(run.network), level.streams) for run in found.runs for level in run.document.levels}
    rows = []
    for place, streams in sorted(levels):
        network = networks[place]
        cells = (cell for policy in policies for cell in _cells(carried.get((network, policy, streams))))
        rows.append((network, str(streams), *cells))
    headings = (f"`{policy}`, {figure}" for policy in policies for figure in ("core-seconds", "p98, ms"))
    return pages.table(("network", "streams", *headings), rows)


def _cells(load: Load | None) -> tuple[str, str]:
    if load is None:
        return pages.number(None), pages.number(None)
    return pages.number(load.core_s_per_hour), pages.number(load.p98_ms)


def markdown(found: Tradeoff) -> str:
    """Return the page."""
    lines = ["# Throughput against latency", "", f"`{found.command}`", ""]
    lines += ["Core-seconds of the server for an hour of audio, and p98 of the latency from the scheduled send of a"]
    lines += ["step's last sample; the load generator runs on the same cores. A dash: a load that was not carried"]
    lines += [f"(refused, failed, or above {GIVE_UP_MS:g} ms), or a higher one.", "", *table(found), ""]
    place = found.runs[0].document.environment
    return "\n".join([*lines, *pages.place_lines(place), ""])


def draw(found: Tradeoff, path: Path) -> None:
    """Plot p98 against core-seconds, a panel for each network and a line to the highest load of each policy."""
    networks = list(dict.fromkeys(run.network for run in found.runs))
    with plot.picture(path, 1, len(networks), (5.2 * len(networks), 4.4)) as panels:
        for axes, network in zip(panels, networks, strict=True):
            for run in found.runs:
                points = loads(run) if run.network == network else []
                across, up = [load.core_s_per_hour for load in points], [load.p98_ms for load in points]
                if points:
                    axes.plot(across, up, marker="o", markersize=5, label=f"{run.policy}, to {points[-1].streams}")
                for load in points:
                    at = (load.core_s_per_hour, load.p98_ms)
                    axes.annotate(f"{load.streams}", at, (4, 4), textcoords="offset points", fontsize="x-small")
            axes.set(xlabel="core-seconds for an hour of audio", ylabel="p98 of latency, ms", xscale="log")
            axes.set(yscale="log", title=f"{network}; numbers: streams")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("{x:g}")
                axis.set_tick_params(which="both", labelsize="x-small")


def measured(
    networks: Sequence[tuple[str, Sequence[str], LoadSettings]], policies: Sequence[str], *, command: str
) -> Tradeoff:
    """Load a server with each network under each policy in turn. Raises: LoadTestError, ClientError."""
    console = Console(stderr=True)
    runs: list[Run] = []
    for policy in policies:
        for network, options, settings in networks:
            console.print(f"{network}, policy {policy}", style="bold")
            with served(["--policy", policy, *ALL_IN, *ONE_PROCESS, *options]) as url:
                result = measure(replace(settings, url=url, policy_label=policy), progress=console.print)
            runs.append(Run(network, policy, result.document))
            if result.document.interrupted:
                return Tradeoff(command, tuple(runs))
    return Tradeoff(command, tuple(runs))


def write(found: Tradeoff, folder: Path) -> int:
    """Write result, page and picture; returns the exit code."""
    picture = folder / f"{NAME}.png"
    written = pages.write(found, markdown(found), folder, NAME)
    draw(found, picture)
    pages.show_written(found, [*written, picture])
    if found.runs[-1].document.interrupted:
        return program.EXIT_INTERRUPTED
    return program.EXIT_OK if all(loads(run) for run in found.runs) else program.EXIT_BAD


def main(
    *,
    streams: program.Levels = "25,50,100,300",
    published: Annotated[Path | None, typer.Option(help="Folder of a published model. Default: ours alone.")] = None,
    published_streams: Annotated[str, typer.Option(help="Load levels of the published model.")] = "2,4,6,8",
    seconds: Annotated[float, typer.Option(help="Seconds measured at each load.")] = 6.0,
    policies: Annotated[str, typer.Option(help="Policies with commas.")] = ",".join(POLICIES),
    manifest: program.Manifest = None,
    seed: program.Seed = 1,
    folder: program.Folder = program.RESULTS,
) -> None:
    """Measure p98 and core-seconds for an hour of audio under each policy, for our network and a published one."""

    def work(command: str) -> int:
        unknown = set(policies.split(",")) - set(POLICIES)
        if unknown:
            raise BadSettings(f"--policies {policies}: must be of {', '.join(POLICIES)}")
        ours = LoadSettings(
            url="",
            streams=parse_streams(streams),
            seconds=seconds,
            manifest=manifest,
            seed=seed,
            stream_s=max(SHORTEST_STREAM_S, seconds / 2),
            give_up_ms=GIVE_UP_MS,
        )
        networks: list[tuple[str, Sequence[str], LoadSettings]] = [(OURS, (), ours)]
        if published is not None:
            theirs = replace(ours, streams=parse_streams(published_streams), long_steps=True)
            networks.append((PUBLISHED, ("--model", str(published.absolute())), theirs))
        return write(measured(networks, policies.split(","), command=command), folder)

    program.carry_out("tutti_asr_lab.benchmarks.tradeoff", work)


if __name__ == "__main__":
    typer.run(main)
