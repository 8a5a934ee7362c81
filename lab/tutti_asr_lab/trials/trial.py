"""The runner of all trials: options of the command line, one form of report with its page and picture, exit codes.

A scenario is a module with a `Plan`, whose fields are the options of its command, and a function `play`, which starts
servers, plays streams, causes an event, and returns a `TrialReport`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

import msgspec
import uvloop
from rich.console import Console

from deploy.ray.backends import HAProxyError
from loadtest.generator.latencies import Spread
from loadtest.generator.measures import LevelReport
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.plot import picture
from loadtest.measurement.report import Result, print_remarks
from loadtest.measurement.run import Alongside
from loadtest.measurement.run import measure as measure_load
from loadtest.program import EXIT_INTERRUPTED, RESULTS, Folder, Seed, ServeOptions, carry_out
from loadtest.reports import pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment, describe

PROGRAM = "tutti_asr_lab.trials"
Returned = TypeVar("Returned")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """Options of every trial."""

    serve_option: ServeOptions = None
    seed: Seed = 1
    folder: Folder = RESULTS

    @property
    def serve_options(self) -> tuple[str, ...]:
        """Further options of each server."""
        return tuple(self.serve_option or ())


class Panel(msgspec.Struct, frozen=True):
    """One panel of the picture: lines by name over the same times."""

    ylabel: str
    xlabel: str
    at: tuple[float, ...]
    lines: Mapping[str, Sequence[float | None]]
    log: bool = False


class TrialReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial: the JSON document of every scenario, from which page and picture are made."""

    title: str
    bars: tuple[Criterion, ...]
    intro: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    """Table of the page, headings first."""
    lines: tuple[str, ...] = ()
    """Figures of the page, a line each."""
    figures: dict[str, Any] = {}
    levels: tuple[LevelReport, ...] = ()
    panels: tuple[Panel, ...] = ()
    problems: tuple[str, ...] = ()
    interrupted: bool = False
    command: str = ""
    environment: Environment | None = None


def say(line: str) -> None:
    """Print progress on stderr."""
    Console(stderr=True).print(line, highlight=False, markup=False)


def run_async(work: Coroutine[Any, Any, Returned]) -> Returned:
    """Run a coroutine in an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def measure(settings: LoadSettings, alongside: Alongside | None = None) -> Result:
    """Run a load test and print remarks on its levels. Raises: LoadTestError, ClientError."""
    result = measure_load(settings, progress=say, alongside=alongside)
    for level in result.document.levels:
        print_remarks(level, Console(stderr=True))
    return result


def latency_line(name: str, spread: Spread | None) -> tuple[str, ...]:
    """Return a line with a distribution, in ms; none if there is no value."""
    if spread is None:
        return ()
    return (f"{name}: p50 {spread.p50:.1f}, p98 {spread.p98:.1f}, max {spread.max:.1f} ms of {spread.count}.",)


def compared_line(level: LevelReport) -> str:
    """Return a line with the transcripts that were compared."""
    return f"{level.compared} transcripts compared with those alone, {level.mismatched} differ."


def markdown(report: TrialReport, image: str) -> str:
    """Return the page; `image`: name of the picture."""
    lines = [f"# {report.title}", "", f"`{report.command}`", ""]
    lines += [report.intro, ""] if report.intro else []
    lines += [*table(report.bars), ""]
    if report.rows:
        lines += [*pages.table(report.rows[0], report.rows[1:]), ""]
    lines += [*(f"{line}  " for line in report.lines), ""]
    lines += pages.place_lines(report.environment) if report.environment is not None else []
    lines += ["", f"![over time]({image})"] if report.panels else []
    return "\n".join([*lines, ""])


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels one below the other."""
    with picture(path, len(panels), 1, (9, 2.5 * len(panels))) as axes_of:
        for axes, panel in zip(axes_of, panels, strict=True):
            for name, values in panel.lines.items():
                shown = [math.nan if value is None else value for value in values]
                axes.step(panel.at, shown, where="post", label=name)
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel, yscale="log" if panel.log else "linear")


def write(report: TrialReport, folder: Path, name: str) -> int:
    """Print the criteria, write NAME.json, NAME.md and the picture; returns the exit code."""
    for problem in report.problems:
        say(problem)
    if report.panels:
        draw(report.panels, folder / f"{name}.png")
    code = conclude(report, report.bars, markdown(report, f"{name}.png"), folder, name)
    return EXIT_INTERRUPTED if report.interrupted else code


def command_of(name: str, scenario: ModuleType) -> Callable[..., None]:
    """Return the command of a scenario: the options are its plan's fields, the help is that of `play`."""

    def command(**options: Any) -> None:
        def work(text: str) -> int:
            plan = scenario.Plan(**options)
            report: TrialReport = scenario.play(plan)
            report = msgspec.structs.replace(report, command=text, environment=describe(plan.seed))
            return write(report, plan.folder, getattr(plan, "result", name))

        carry_out(PROGRAM, work, OSError, HAProxyError)

    hints = get_type_hints(scenario.Plan, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(scenario.Plan)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints
    command.__doc__ = scenario.play.__doc__
    return command
