"""Soak test: streams come and go for half an hour at 70 % of capacity; the last minutes must be as the first.

`python -m loadtest.soak --minutes 30 --capacity 400` starts a server, and writes `loadtest/results/soak.json`, `.md`
and `.png`. `--minutes 3` compares single minutes, for continuous integration. Owns the order of work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.generator.arrivals import Arrivals
from loadtest.generator.measures import MINUTE_S
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.report import print_remarks
from loadtest.measurement.run import measure
from loadtest.program import EXIT_INTERRUPTED, RESULTS, Folder, ServeOptions, ServerUrl, carry_out
from loadtest.reports.criteria import conclude
from loadtest.served import ALL_IN, server_at
from loadtest.stability import Rule, Soak, draw_soak, soak_markdown

NAME = "soak"

LONG_MINUTES = 10
"""From this length on, five minutes are compared with five: the rule of the half hour."""

SHORT_RULE = Rule(window_minutes=1, latency_share=0.5, memory_share=0.02, slack_ms=5.0)
"""One minute beside another on a shared machine: finds what grows without bound, not what drifts."""


def run(
    settings: LoadSettings,
    where: AbstractContextManager[str],
    rule: Rule,
    *,
    capacity: int,
    folder: Path,
    command: str,
) -> int:
    """Soak, print, write; returns the exit code. Raises: LoadTestError, ClientError."""
    console = Console(stderr=True)
    with where as url:
        result = measure(replace(settings, url=url, arrivals=Arrivals.CHURN), progress=console.print)
    [level], [minutes] = result.document.levels, result.minutes
    first, last = rule.windows(minutes)
    load = level.streams / capacity
    bars = tuple(rule.judge(level, first, last))
    found = Soak(command, capacity, load, rule.window_minutes, first, last, bars, level, result.document.environment)
    print_remarks(level, console)
    draw_soak(found, folder / f"{NAME}.png")
    code = conclude(found, bars, soak_markdown(found, f"{NAME}.png"), folder, NAME)
    return EXIT_INTERRUPTED if result.document.interrupted else code


def main(
    *,
    capacity: Annotated[int, typer.Option(help="Streams that this machine sustains: loadtest/results/capacity.md.")],
    minutes: Annotated[float, typer.Option(help="Measured, after the warm-up.")] = 30.0,
    load: Annotated[float, typer.Option(help="Live streams on average, as a share of the capacity.")] = 0.7,
    stream_s: Annotated[float, typer.Option(help="Mean duration of a stream.")] = 20.0,
    warmup_s: Annotated[float, typer.Option(help="Seconds before the first measured one.")] = MINUTE_S,
    url: ServerUrl = None,
    serve_option: ServeOptions = None,
    seed: Annotated[int, typer.Option(help="Decides starts, durations and recordings.")] = 1,
    folder: Folder = RESULTS,
) -> None:
    """Play streams that come and go for half an hour; compare the last minutes with the first."""

    def work(command: str) -> int:
        streams = max(1, round(load * capacity))
        seconds = minutes * MINUTE_S
        base = LoadSettings("", (streams,), seconds, warmup_s=warmup_s, stream_s=stream_s, seed=seed)
        rule = Rule() if minutes >= LONG_MINUTES else SHORT_RULE
        where = server_at(url, (*ALL_IN, *(serve_option or ())))
        return run(base, where, rule, capacity=capacity, folder=folder, command=command)

    carry_out("loadtest.soak", work)


if __name__ == "__main__":
    typer.run(main)
