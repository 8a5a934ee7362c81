"""Half an hour at 70 % of capacity, streams coming and going: is the end as the beginning?

`python -m loadtest.soak --minutes 30 --capacity 400` starts a server, and writes `loadtest/results/soak.json`, `.md`
and `.png`. `--minutes 3` compares single minutes, for continuous integration. Owns the order of work.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.criteria import carry_out, conclude
from loadtest.generator.arrivals import Arrivals
from loadtest.generator.measures import MINUTE_S
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.report import print_remarks
from loadtest.measurement.run import EXIT_INTERRUPTED, measure
from loadtest.served import ALL_IN, served
from loadtest.stability import Rule, Soak, draw_soak, soak_markdown

RESULTS = Path(__file__).parent / "results"
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
        result = measure(replace(settings, url=url, arrivals=Arrivals.CHURN), tell=console.print)
    [level], [minutes] = result.document.levels, result.minutes
    first, last = rule.windows(minutes)
    load = level.streams / capacity
    bars = tuple(rule.judge(level, first, last))
    found = Soak(command, capacity, load, rule.window_minutes, first, last, bars, level, result.document.environment)
    print_remarks(level, console)
    draw_soak(found, folder / f"{NAME}.png")
    code = conclude(found, soak_markdown(found, f"{NAME}.png"), folder, NAME, console)
    return EXIT_INTERRUPTED if result.document.interrupted else code


def main(
    *,
    capacity: Annotated[int, typer.Option(help="Streams that this machine sustains: loadtest/results/capacity.md.")],
    minutes: Annotated[float, typer.Option(help="Measured, after the warm-up.")] = 30.0,
    load: Annotated[float, typer.Option(help="Live streams on average, as a share of the capacity.")] = 0.7,
    stream_s: Annotated[float, typer.Option(help="Mean duration of a stream.")] = 20.0,
    warmup_s: Annotated[float, typer.Option(help="Seconds before the first measured one.")] = MINUTE_S,
    url: Annotated[str | None, typer.Option(help="A running server. Default: one of our own.")] = None,
    serve_option: Annotated[list[str] | None, typer.Option(help="Passed on to `tutti serve`; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Decides starts, durations and recordings.")] = 1,
    folder: Annotated[Path, typer.Option(help="Where the results are written.")] = RESULTS,
) -> None:
    """Play streams that come and go for half an hour; compare the last minutes with the first."""
    command = shlex.join(["python", "-m", "loadtest.soak", *sys.argv[1:]])

    def work() -> int:
        streams = max(1, round(load * capacity))
        seconds = minutes * MINUTE_S
        base = LoadSettings("", (streams,), seconds, warmup_s=warmup_s, stream_s=stream_s, seed=seed)
        rule = Rule() if minutes >= LONG_MINUTES else SHORT_RULE
        where = nullcontext(url) if url is not None else served((*ALL_IN, *(serve_option or ())))
        return run(base, where, rule, capacity=capacity, folder=folder, command=command)

    carry_out("soak", work)


if __name__ == "__main__":
    typer.run(main)
