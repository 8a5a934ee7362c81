"""`gpu.md`, rendered from `gpu.json`: a table a section, predictions beside it, and "never run" where nothing is.

It computes no figure but ratios, and knows no section's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.gpu.predict import MISSED, Prediction, compared
from loadtest.gpu.records import Case, Results, Row, Value

NEVER = "never run"
UNSHOWN = ("us_p10", "us_p90")  # in gpu.json


@dataclass(frozen=True, slots=True)
class Table:
    """How a section is shown: one line for the same `lines`, one column a value of `across`, the values in a cell."""

    section: str
    title: str
    says: str
    lines: tuple[str, ...] = ()
    across: str = ""
    cell: tuple[str, ...] = ()


TABLES = (
    Table("compile", "Compilation", "Host seconds until each network's kernels are compiled, a process a batch size."),
    Table("probe", "Ceilings of the device", "What a kernel, a copy or a wait can reach here."),
    Table(
        "bits",
        "Bits",
        "Whether results are equal to the bit: a row alone and in company, a chunk and single steps, rung and rung.",
        ("what", "network", "rung"),
        "rows",
        ("equal",),
    ),
    Table("correct", "Errors", "Beside plain arithmetic on the CPU; outputs are poisoned before each call."),
    Table(
        "steps",
        "A step",
        "µs, by rows. A graph replayed, but the rung `eager`, which is torch calls. `host to host`: "
        "audio in pinned memory to log-probs in pinned memory, p50 / p98.",
        ("network", "rung", "how", "steps"),
        "rows",
        ("us", "us_p50", "us_p98"),
    ),
    Table(
        "recurrence",
        "The recurrence of one layer",
        "µs a frame, by rows; weights from memory (several layers in turn) but in rows named warm. cuDNN's layer and "
        "the loop have the input product in them.",
        ("hidden", "how", "frames", "weights"),
        "rows",
        ("us_a_frame",),
    ),
    Table(
        "products",
        "Products",
        "GB/s of weights, by columns (rows times frames); weights from memory.",
        ("network", "product", "how"),
        "columns",
        ("gb_s",),
    ),
    Table(
        "streams",
        "Live streams on one thread",
        "Unsynchronised streams, audio due by the clock; ms from due to log-probs on the host. The batching core and "
        "the device, without event loop and decoding.",
    ),
    Table("catchup", "Uploads beside live streams", "`chunk`: the most steps of one stream in a batch."),
    Table("recordings", "The shipped model on the shipped recordings", "fp16 on the device beside fp32 on the CPU."),
)


def write(results: Results, folder: Path) -> Path:
    """Write gpu.md; returns its path."""
    path = folder / "gpu.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(results), encoding="utf-8")
    return path


def page(results: Results) -> str:
    """The whole page."""
    parts = [
        "# The GPU path, measured\n",
        "Rendered from `gpu.json` by `python -m loadtest.gpu render`; `make gpu` measures.\n",
        _runs(results),
        tables(results),
        _missed(results),
        _failures(results),
    ]
    return "\n".join(part for part in parts if part)


def tables(results: Results, sections: Iterable[str] = ()) -> str:
    """The tables of some sections, of all by default."""
    chosen = [table for table in TABLES if not sections or table.section in sections]
    return "\n".join(f"## {table.title}\n\n{_body(results, table)}\n" for table in chosen)


def predicted(results: Results) -> str:
    """Every prediction, and beside it what was measured."""
    lines = []
    for each, measured in compared(results):
        found = NEVER if measured is None else f"{_number(measured)}"
        ratio = "" if measured is None else f"{each.ratio(measured):.2f}"
        lines.append([*_named(each), found, ratio, each.formula])
    return "\n".join(_markdown(["figure", "kind", "predicted", "measured", "ratio", "from"], lines))


def _named(each: Prediction) -> list[str]:
    return [each.key, each.kind, f"{each.bound} {_number(each.predicted)}"]


def _runs(results: Results) -> str:
    if not results.runs:
        return f"No run: every table below was {NEVER}.\n"
    lines = []
    for run in results.runs:
        machine = run.machine
        versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
        clocks = " → ".join(_clocks(machine.get(key)) for key in ("clocks_before", "clocks_after"))
        dry = "**dry, CPU, no measurement**; " if run.dry else ""
        lines.append(
            f"- part {run.part}: {dry}{machine.get('device', '?')}, driver {machine.get('driver', '–')}, {versions}, "
            f"Python {machine.get('python', '?')}; clocks {clocks}; commit {machine.get('commit') or '–'}, "
            f"{machine.get('date', '?')}"
        )
    return "\n".join(lines) + "\n"


def _clocks(found: dict[str, str] | None) -> str:
    return (
        " ".join((found or {}).get(name, "") for name in ("clocks.sm", "clocks.mem", "temperature.gpu")).strip() or "–"
    )


def _body(results: Results, table: Table) -> str:
    rows = [row for row in results.latest(table.section) if row.values]
    if not rows:
        return NEVER
    shown = _flat(rows) if not table.across else _pivot(rows, table, results)
    rest = [row for row in rows if table.across and table.across not in row.case]
    more = ["", *_flat(rest)] if rest else []
    dry = ["", "**dry, CPU, no measurement**"] if any(results.runs[row.run].dry for row in rows) else []
    return "\n".join([table.says, "", *shown, *more, *dry])


def _pivot(rows: Sequence[Row], table: Table, results: Results) -> list[str]:
    """Rows with the column's entry; under a line that was foretold, what was foretold."""
    rows = [row for row in rows if table.across in row.case]
    columns = sorted({row.case[table.across] for row in rows}, key=lambda value: (isinstance(value, str), value))
    named = [key for key in table.lines if any(key in row.case for row in rows)]
    grouped: dict[tuple[Value, ...], dict[Value, Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(row.case.get(key) for key in named), {})[row.case[table.across]] = row
    foretold = _foretold(results, table)
    lines = []
    for line, cells in grouped.items():
        lines.append([*(_text(value) for value in line), *(_cell(cells.get(column), table.cell) for column in columns)])
        expected = [foretold.get(_key(cells[column].case)) if column in cells else None for column in columns]
        if any(expected):
            lines.append([*("" for _ in line[:-1]), "*predicted*", *(_expected(each) for each in expected)])
    return _markdown([*named, *(_text(column) for column in columns)], lines)


def _foretold(results: Results, table: Table) -> dict[str, Prediction]:
    """Computed predictions of a table's first value, by case; a frame's where a table shows frames."""
    return {
        _key(each.case): each
        for each, _ in compared(results)
        if each.section == table.section and each.kind == "computed" and each.name in {*table.cell, "us"}
    }


def _expected(prediction: Prediction | None) -> str:
    if prediction is None:
        return ""
    frames = prediction.case.get("frames")
    share = float(frames) if prediction.section == "recurrence" and isinstance(frames, int) else 1.0
    return f"*{_number(prediction.predicted / share)}*"


def _cell(row: Row | None, names: Sequence[str]) -> str:
    if row is None:
        return ""
    return " / ".join(_text(row.values[name]) for name in names if name in row.values)


def _flat(rows: Sequence[Row]) -> list[str]:
    """A line a row, a column for every entry of a case and every value."""
    keys = _union(row.case for row in rows)
    names = [name for name in _union(row.values for row in rows) if name not in UNSHOWN]
    lines = [
        [*(_text(row.case.get(key)) for key in keys), *(_text(row.values.get(name)) for name in names)] for row in rows
    ]
    return _markdown([*keys, *names], lines)


def _union(entries: Iterable[Case]) -> list[str]:
    found: dict[str, None] = {}
    for each in entries:
        found.update(dict.fromkeys(each))
    return list(found)


def _missed(results: Results) -> str:
    """Predictions that were off by more than `MISSED`, with the reason where one was given."""
    every = compared(results)
    measured = [(each, value) for each, value in every if value is not None]
    lines = [
        [*_named(each), _number(value), f"{each.ratio(value):.2f}", results.reasons.get(each.key, "")]
        for each, value in measured
        if each.missed(value)
    ]
    text = f"## Predictions\n\n{len(every)} figures were predicted, {len(measured)} of them measured, "
    text += f"{len(lines)} missed by more than {MISSED} ×.\n"
    if not lines:
        return text
    shown = _markdown(["figure", "kind", "predicted", "measured", "ratio", "reason"], lines)
    return text + "\n" + "\n".join(shown) + "\n"


def _failures(results: Results) -> str:
    rows = [row for table in TABLES for row in results.latest(table.section) if row.error]
    if not rows:
        return ""
    lines = [
        [row.section, " ".join(f"{k}={v}" for k, v in row.case.items()), row.error.replace("|", "/")] for row in rows
    ]
    return "\n".join(["## Cases that failed or were cut off", "", *_markdown(["section", "case", "error"], lines), ""])


def _key(case: Case) -> str:
    return repr(sorted(case.items()))


def _text(value: Value) -> str:
    """A value in a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return _number(value) if isinstance(value, float) else str(value).replace("|", "/")


def _number(value: float) -> str:
    """Four digits at most after the point, and no more than a number's size is worth."""
    form: Callable[[float], str] = "{:,.0f}".format if abs(value) >= 1_000 else "{:.4g}".format
    return form(value)


def _markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    body = ["| " + " | ".join(cells) + " |" for cells in [headings, *lines]]
    return [body[0], "|" + "---|" * len(headings), *body[1:]]
