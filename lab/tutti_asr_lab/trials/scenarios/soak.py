"""Soak test: streams come and go for half an hour at 70 % of capacity; the last minutes must be like the first.

`python -m tutti_asr_lab.trials.soak --minutes 30 --capacity 400` starts a server, and writes
`loadtest/results/soak.json`, `.md` and `.png`. With `--minutes 3` it compares single minutes, for continuous
integration.
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
from tutti_asr_lab.trials.stability import Rule, Soak, draw_soak, soak_markdown

NAME = "soak"

LONG_MINUTES = 10
"""From this length on, the first and last five minutes are compared."""

SHORT_RULE = Rule(window_minutes=1, latency_share=0.5, memory_share=0.02, slack_ms=5.0)
"""Compares single minutes on a shared machine: detects unbounded growth, not drift."""


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
    capacity: Annotated[
        int, typer.Option(help="Streams that this machine sustains, see loadtest/results/capacity.md.")
    ],
    minutes: Annotated[float, typer.Option(help="Minutes measured, after the warm-up.")] = 30.0,
    load: Annotated[float, typer.Option(help="Mean number of live streams, as a share of the capacity.")] = 0.7,
    stream_s: Annotated[float, typer.Option(help="Mean length of a stream, seconds.")] = 20.0,
    warmup_s: Annotated[float, typer.Option(help="Seconds of warm-up.")] = MINUTE_S,
    url: ServerUrl = None,
    serve_option: ServeOptions = None,
    seed: Annotated[int, typer.Option(help="Random seed for start times, lengths and recordings.")] = 1,
    folder: Folder = RESULTS,
) -> None:
    """Play streams that come and go, and compare the last minutes with the first."""

    def work(command: str) -> int:
        streams = max(1, round(load * capacity))
        seconds = minutes * MINUTE_S
        base = LoadSettings("", (streams,), seconds, warmup_s=warmup_s, stream_s=stream_s, seed=seed)
        rule = Rule() if minutes >= LONG_MINUTES else SHORT_RULE
        where = server_at(url, (*ALL_IN, *(serve_option or ())))
        return run(base, where, rule, capacity=capacity, folder=folder, command=command)

    carry_out("tutti_asr_lab.trials.soak", work)


if __name__ == "__main__":
    typer.run(main)
