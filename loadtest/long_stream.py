"""Streams of ten minutes: are the last minute's latency and the server's memory those of the first?

`python -m loadtest.long_stream` starts a server, plays long streams made of the shipped recordings in real time, and
writes `loadtest/results/long_stream.json` and `.md`. Owns the order of work.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.criteria import carry_out
from loadtest.generator.arrivals import Arrivals
from loadtest.generator.composition import write_streams
from loadtest.generator.settings import LoadSettings, parse_streams
from loadtest.measurement.report import faults, print_remarks
from loadtest.measurement.run import EXIT_BAD, EXIT_INTERRUPTED, EXIT_OK, measure
from loadtest.served import served
from loadtest.stability import LongRuns, drifts, markdown

RESULTS = Path(__file__).parent / "results"
NAME = "long_stream"
DIFFERENT = 3
"""Streams that differ, so that one stream's text in another's result shows."""


def run(settings: LoadSettings, where: AbstractContextManager[str], folder: Path, command: str) -> int:
    """Play, print, write; returns the exit code: bad where a level has faults or is not flat.

    Raises: LoadTestError, ClientError.
    """
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tutti-") as place, where as url:
        manifest = write_streams(Path(place), [settings.seconds] * DIFFERENT, settings.seed, settings.manifest)
        result = measure(replace(settings, url=url, manifest=manifest, arrivals=Arrivals.ONCE), tell=console.print)
    runs = LongRuns(command, result.document.levels, result.document.environment)
    folder.mkdir(parents=True, exist_ok=True)
    document, page = folder / f"{NAME}.json", folder / f"{NAME}.md"
    document.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1) + b"\n")
    page.write_text(markdown(runs), encoding="utf-8")
    for level in runs.levels:
        print_remarks(level, console)
        for drift in drifts(level):
            console.print(f"{level.streams} streams: {drift}", style="red", highlight=False)
    console.print(f"wrote {document} and {page.name}", highlight=False, soft_wrap=True)
    typer.echo(msgspec.json.encode(runs).decode())
    if result.document.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_BAD if any(faults(level) or drifts(level) for level in runs.levels) else EXIT_OK


def main(
    *,
    streams: Annotated[str, typer.Option(help="Levels: numbers of live streams, with commas.")] = "1,20",
    minutes: Annotated[float, typer.Option(help="Of each level and of each stream.")] = 10.0,
    url: Annotated[str | None, typer.Option(help="A running server. Default: one of our own.")] = None,
    serve_option: Annotated[list[str] | None, typer.Option(help="Passed on to `tutti serve`; repeatable.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="JSON lines. Default: the shipped recordings.")] = None,
    seed: Annotated[int, typer.Option(help="Decides order and pauses.")] = 1,
    folder: Annotated[Path, typer.Option(help="Where the results are written.")] = RESULTS,
) -> None:
    """Play streams of ten minutes and compare their last minute with their first."""
    command = shlex.join(["python", "-m", "loadtest.long_stream", *sys.argv[1:]])

    def work() -> int:
        levels = parse_streams(streams)
        settings = LoadSettings(url="", streams=levels, seconds=minutes * 60.0, manifest=manifest, seed=seed)
        return run(settings, nullcontext(url) if url is not None else served(serve_option or ()), folder, command)

    carry_out("long_stream", work)


if __name__ == "__main__":
    typer.run(main)
