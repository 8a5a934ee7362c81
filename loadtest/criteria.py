"""Bars: what was wanted, what was found, and whether that is enough; and the page that says so.

Knows no measurement of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadtest.environment import Environment


class Bar(msgspec.Struct, frozen=True):
    """One thing that had to hold. `found` is None where it could not be measured, which is not met."""

    what: str
    at_most: float
    found: float | None
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether it held."""
        return self.found is not None and self.found <= self.at_most

    @property
    def line(self) -> str:
        """For people."""
        found = "not measured" if self.found is None else f"{self.found:g}{_spaced(self.unit)}"
        return f"{self.what}: {found} (at most {self.at_most:g}{_spaced(self.unit)})"


def unmet(bars: Iterable[Bar]) -> list[str]:
    """The lines of those that were not met."""
    return [bar.line for bar in bars if not bar.met]


def table(bars: Sequence[Bar]) -> list[str]:
    """Markdown."""
    rows = ["| what | at most | found | |", "|---|---:|---:|---|"]
    for bar in bars:
        unit, found = _spaced(bar.unit), "–" if bar.found is None else f"{bar.found:g}"
        rows.append(f"| {bar.what} | {bar.at_most:g}{unit} | {found}{unit} | {'met' if bar.met else '**missed**'} |")
    return rows


def place_lines(place: Environment) -> list[str]:
    """Where a page's figures were measured."""
    versions = ", ".join(f"{package} {version}" for package, version in place.versions.items())
    return [
        f"{place.hardware}, {place.cores} cores, Python {place.python}, {versions}.  ",
        f"Commit {place.commit}, seed {place.seed}, {place.date}.",
    ]


def write(document: msgspec.Struct, page: str, folder: Path, name: str) -> list[Path]:
    """Write NAME.json and NAME.md; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    paths[0].write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    paths[1].write_text(page, encoding="utf-8")
    return paths


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""
