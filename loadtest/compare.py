"""`make bench`: the same load on our own server under one policy, or one decoder, after another.

Owns the order of work. The servers run one at a time, on free loopback ports, and are stopped by pid.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.ceiling import Ceiling, measure_ceiling
from loadtest.comparison import Comparison, ceiling_lines, print_comparison, write
from loadtest.concluding import carry_out
from loadtest.generator.settings import LoadSettings, parse_streams
from loadtest.measurement.report import Result, faults
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
