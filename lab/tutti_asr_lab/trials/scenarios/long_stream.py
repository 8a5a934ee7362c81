"""Long streams: latency and the server's memory in the last minute, compared with the first.

`python -m tutti_asr_lab.trials.long_stream` starts a server, plays long streams composed of the shipped recordings in
real time, and writes `loadtest/results/long_stream.json` and `.md`.
"""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest import program
from loadtest.generator.arrivals import Arrivals
from loadtest.generator.composition import write_streams
from loadtest.generator.settings import LoadSettings, parse_streams
from loadtest.measurement.report import faults, print_remarks
from loadtest.measurement.run import measure
from loadtest.reports import pages
from loadtest.served import server_at
from tutti_asr_lab.trials.stability import LongRuns, drifts, markdown

NAME = "long_stream"
DIFFERENT = 3
"""Number of distinct streams: text that leaks from one stream to another is detected."""


def run(settings: LoadSettings, where: AbstractContextManager[str], folder: Path, command: str) -> int:
    """Measure, print and write; returns the exit code: bad if a level has faults or drifts.

    Raises: LoadTestError, ClientError.
    """
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tutti-") as place, where as url:
        manifest = write_streams(Path(place), [settings.seconds] * DIFFERENT, settings.seed, settings.manifest)
        result = measure(replace(settings, url=url, manifest=manifest, arrivals=Arrivals.ONCE), progress=console.print)
    runs = LongRuns(command, result.document.levels, result.document.environment)
    for level in runs.levels:
        print_remarks(level, console)
        for drift in drifts(level):
            console.print(f"{level.streams} streams: {drift}", style="red", highlight=False)
    pages.show_written(runs, pages.write(runs, markdown(runs), folder, NAME))
    if result.document.interrupted:
        return program.EXIT_INTERRUPTED
    return program.EXIT_BAD if any(faults(level) or drifts(level) for level in runs.levels) else program.EXIT_OK


def main(
    *,
    streams: program.Levels = "1,20",
    minutes: Annotated[float, typer.Option(help="Length of each stream and each level, minutes.")] = 10.0,
    url: program.ServerUrl = None,
    serve_option: program.ServeOptions = None,
    manifest: Annotated[Path | None, typer.Option(help="Recordings as JSON lines. Default: the shipped ones.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed for order and pauses.")] = 1,
    folder: program.Folder = program.RESULTS,
) -> None:
    """Play long streams and compare their last minute with the first."""

    def work(command: str) -> int:
        levels = parse_streams(streams)
        settings = LoadSettings(url="", streams=levels, seconds=minutes * 60.0, manifest=manifest, seed=seed)
        return run(settings, server_at(url, serve_option or ()), folder, command)

    program.carry_out("tutti_asr_lab.trials.long_stream", work)


if __name__ == "__main__":
    typer.run(main)
