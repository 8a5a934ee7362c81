"""The document `gpu.json`: runs with their machine, and their rows, appended as they are measured.

A row is written to disk before the next case begins, so an interrupted run keeps its results.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.checkpoint import write_atomically

Value = float | int | str | bool | None
Case = dict[str, Value]
"""Parameters that identify a row within its section: network, rows, rung, …"""
Values = dict[str, Value]
"""Measured values by name; names include units."""

NAME = "gpu.json"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program. `machine` has device, driver, versions, clocks, commit and date."""

    part: str
    machine: dict[str, Any]
    dry: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one case; `run` is the index of its run. `values` is empty if there is an `error`."""

    run: int
    section: str
    case: Case
    values: Values = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class Results:
    """All runs and rows."""

    runs: list[Run] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def read(path: Path) -> Results:
    """Read a document; a missing file gives an empty one. Raises: ValueError for an invalid file."""
    if not path.exists():
        return Results()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        runs = [Run(**each) for each in document["runs"]]
        rows = [Row(**each) for each in document["rows"]]
        return Results(runs, rows)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a result file of tutti_asr_lab.benchmarks.gpu: {error}") from error


def write(results: Results, path: Path) -> None:
    """Write the document atomically: to a temporary file, flushed to disk and renamed."""
    document = {
        "runs": [dataclasses.asdict(run) for run in results.runs],
        "rows": [dataclasses.asdict(row) for row in results.rows],
    }
    lists = {key: _lines(document[key]) for key in ("runs", "rows")}
    text = f'{{\n"runs": {lists["runs"]},\n"rows": {lists["rows"]}\n}}\n'
    write_atomically(path, text.encode())


def _lines(entries: Any) -> str:
    """Return a JSON list with one entry per line, for readable diffs."""
    return "[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]"
