"""Bars of a measurement, the page that states them, and how the programs of this folder end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
import typer
from rich.console import Console

from loadtest.environment import Environment
from loadtest.errors import LoadTestError
from loadtest.measurement.run import EXIT_BAD, EXIT_INTERRUPTED, EXIT_OK
from tutti_asr_client.errors import ClientError


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


class Judged(Protocol):
    """A result with what had to hold."""

    @property
    def bars(self) -> Sequence[Bar]: ...  # noqa: D102


def show(bars: Sequence[Bar], console: Console) -> None:
    """A line each, coloured by whether it held."""
    for bar in bars:
        console.print(bar.line, style="green" if bar.met else "red", highlight=False)


def conclude(found: Judged, page: str, folder: Path, name: str, console: Console) -> int:
    """Show the bars, write NAME.json and NAME.md, print the result; returns the exit code."""
    assert isinstance(found, msgspec.Struct)
    show(found.bars, console)
    for path in write(found, page, folder, name):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    typer.echo(msgspec.json.encode(found).decode())
    return EXIT_BAD if unmet(found.bars) else EXIT_OK


def carry_out(program: str, work: Callable[[], int]) -> NoReturn:
    """End the program with the exit code of its work; an error that it may have is one red line. Raises: typer.Exit."""
    try:
        code = work()
    except (LoadTestError, ClientError) as error:
        Console(stderr=True).print(f"{program}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        code = EXIT_BAD
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    raise typer.Exit(code)
