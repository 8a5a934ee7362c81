"""Criteria of a measurement, met or missed: tables, output, and the resulting exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from loadtest.program import EXIT_BAD, EXIT_OK
from loadtest.reports import pages


class Criterion(msgspec.Struct, frozen=True):
    """A figure and its upper bound. `found` is None if it could not be measured, which counts as missed."""

    what: str
    at_most: float
    found: float | None
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure was measured and is within its bound."""
        return self.found is not None and self.found <= self.at_most

    @property
    def line(self) -> str:
        """The criterion as a line of text."""
        figure = "not measured" if self.found is None else f"{self.found:g}{_spaced(self.unit)}"
        return f"{self.what}: {figure} (at most {self.at_most:g}{_spaced(self.unit)})"


def unmet(criteria: Iterable[Criterion]) -> list[str]:
    """Return the lines of missed criteria."""
    return [criterion.line for criterion in criteria if not criterion.met]


def table(criteria: Iterable[Criterion]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| what | at most | found | |", "|---|---:|---:|---|"]
    for one in criteria:
        unit, figure = _spaced(one.unit), pages.number(one.found, "g")
        lines.append(f"| {one.what} | {one.at_most:g}{unit} | {figure}{unit} | {'met' if one.met else '**missed**'} |")
    return lines


def show(criteria: Iterable[Criterion], console: Console) -> None:
    """Print a line per criterion, in green or red."""
    for criterion in criteria:
        console.print(criterion.line, style="green" if criterion.met else "red", highlight=False)


def conclude(document: msgspec.Struct, criteria: Sequence[Criterion], page: str, folder: Path, name: str) -> int:
    """Print the criteria, write NAME.json and NAME.md, print the result; returns the exit code."""
    show(criteria, Console(stderr=True))
    pages.show_written(document, pages.write(document, page, folder, name))
    return EXIT_BAD if unmet(criteria) else EXIT_OK


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""
