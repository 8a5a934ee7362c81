"""Files of a result: the JSON document, and the Markdown page with tables and environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from loadtest.generator.latencies import Spread
from loadtest.reports.environment import Environment


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---:") -> list[str]:
    """Return the lines of a Markdown table; the first column has default alignment, the others `align`."""
    lines = [headings, *rows]
    body = ["| " + " | ".join(cells) + " |" for cells in lines]
    return [body[0], "|---|" + f"{align}|" * (len(headings) - 1), *body[1:]]


def number(value: float | None, form: str = ".1f") -> str:
    """Return a number for a table; a dash if it was not measured."""
    return "–" if value is None else format(value, form)


def percentile(spread: Spread | None, name: str) -> str:
    """Return a percentile, the mean or the count of a distribution for a table."""
    return number(None if spread is None else getattr(spread, name))


def place_lines(environment: Environment, versions: dict[str, str] | None = None) -> list[str]:
    """Return lines with the machine, versions (with `versions` added), commit, seed and date."""
    named = ", ".join(f"{package} {version}" for package, version in (environment.versions | (versions or {})).items())
    return [
        f"{environment.hardware}, {environment.cores} cores, Python {environment.python}, {named}.  ",
        f"Commit {environment.commit}, seed {environment.seed}, {environment.date}.",
    ]


def write_json(document: msgspec.Struct, path: Path) -> None:
    """Write an indented JSON document; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def write(document: msgspec.Struct, page: str, folder: Path, name: str) -> list[Path]:
    """Write NAME.json and NAME.md and return their paths."""
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    write_json(document, paths[0])
    paths[1].write_text(page, encoding="utf-8")
    return paths


def show_written(document: msgspec.Struct, paths: Iterable[Path]) -> None:
    """Print the paths on stderr and the document as the last line of stdout."""
    console = Console(stderr=True)
    for path in paths:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    typer.echo(msgspec.json.encode(document).decode())
