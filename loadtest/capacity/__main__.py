"""Capacity of one machine in live streams: latency, batch sizes and the knee, for each policy.

`make bench` runs `python -m loadtest.capacity`, which writes `loadtest/results/capacity.json`, `.md` and `.png`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest import program
from loadtest.capacity.report import Capacity, draw, judge, markdown
from loadtest.compare import measure_each
from loadtest.errors import BadSettings
from loadtest.generator.settings import SHORTEST_STREAM_S, LoadSettings, parse_streams
from loadtest.reports.criteria import conclude

LEVELS = "10,50,100,200,300,400,500,600"
SPARE = 64
"""Slots above the highest level, since an ending stream and its successor overlap briefly."""

GIVE_UP_MS = 1000.0
"""A policy whose p98 is ten times the objective is past its knee; higher levels are skipped."""


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


def run(
    settings: LoadSettings, policies: list[str], serve_options: list[str], *, folder: Path, name: str, command: str
) -> int:
    """Measure, print, write; returns the exit code: bad if the first policy misses a criterion."""
    console = Console(stderr=True)
    comparison, results = measure_each(
        settings, policies, serve_options=serve_options, command=command, console=console
    )
    bars = tuple(judge(next(iter(comparison.runs.values())).levels))
    found = Capacity(comparison, bars, settings.stream_s)
    draw(results, folder / f"{name}.png")
    code = conclude(found, bars, markdown(found, f"{name}.png"), folder, name)
    return program.EXIT_INTERRUPTED if any(document.interrupted for document in comparison.runs.values()) else code


def main(
    *,
    streams: program.Levels = LEVELS,
    seconds: Annotated[str, typer.Option(help="Seconds measured: one number, or one for each level.")] = "60",
    policies: Annotated[
        str, typer.Option(help="Policies with commas; only the first is judged.")
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
    """Load a server with increasing numbers of streams for each policy; judge latency, tail and capacity."""

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
        return run(settings, policies.split(","), options, folder=folder, name=name, command=command)

    program.carry_out("loadtest.capacity", work)


if __name__ == "__main__":
    typer.run(main)
