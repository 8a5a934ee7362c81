"""Files of a result: the JSON document, and the Markdown page with its tables and the line about the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from loadtest.generator.latencies import Spread
from loadtest.reports.environment import Environment


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---:") -> list[str]:
    """Lines of a Markdown table; the first column is aligned left, the others as `align` says."""
    lines = [headings, *rows]
    body = ["| " + " | ".join(cells) + " |" for cells in lines]
    return [body[0], "|---|" + f"{align}|" * (len(headings) - 1), *body[1:]]


def number(value: float | None, form: str = ".1f") -> str:
    """A number in a table; a dash for one that was not measured."""
    return "–" if value is None else format(value, form)


def percentile(spread: Spread | None, name: str, form: str = ".1f") -> str:
    """A percentile, the mean or the count of a distribution in a table."""
    return number(None if spread is None else getattr(spread, name), form)


def place_lines(place: Environment, versions: dict[str, str] | None = None) -> list[str]:
    """Lines on the machine, its `versions` beside those of the environment, commit, seed and date of the figures."""
    named = ", ".join(f"{package} {version}" for package, version in (place.versions | (versions or {})).items())
    return [
        f"{place.hardware}, {place.cores} cores, Python {place.python}, {named}.  ",
        f"Commit {place.commit}, seed {place.seed}, {place.date}.",
    ]


def write_json(document: msgspec.Struct, path: Path) -> None:
    """Write an indented JSON document, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def write(document: msgspec.Struct, page: str, folder: Path, name: str) -> list[Path]:
    """Write NAME.json and NAME.md; returns their paths."""
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    write_json(document, paths[0])
    paths[1].write_text(page, encoding="utf-8")
    return paths


def show_written(document: msgspec.Struct, paths: Iterable[Path]) -> None:
    """Name the files on stderr, and print the document as the last line of stdout."""
    console = Console(stderr=True)
    for path in paths:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    typer.echo(msgspec.json.encode(document).decode())
