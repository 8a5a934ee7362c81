"""`gpu.md`, rendered from `gpu.json`: a table for each section, or "never run" if it has no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutti_asr_lab.benchmarks.gpu.records import Case, Results, Row, Value

NEVER = "never run"
UNSHOWN = ("us_p10", "us_p90")  # only in gpu.json


@dataclass(frozen=True, slots=True)
class Table:
    """Layout of a section: lines by `lines`, columns by the values of `across`, and the values `cell` in each cell."""

    section: str
    title: str
    caption: str
    lines: tuple[str, ...] = ()
    across: str = ""
    cell: tuple[str, ...] = ()


BEGIN, END = "<!-- figures of gpu.json -->", "<!-- end of the figures -->"
_STEP: Case = {"network": "ds2-7x1760", "steps": None, "how": None}
_STREAMS: Case = {"network": "ds2-7x1760", "rung": "persistent"}
_LAYER: Case = {"hidden": 1_760, "rows": 8}
SUMMARY: dict[str, tuple[str, Case, str]] = {  # a figure's description; section, case and name of its value
    "read bandwidth of the memory, GB/s": ("probe", {"what": "read"}, "gb_s"),
    "one launch of the recurrence: 1,760 units, 8 rows, 16 frames, µs": (
        ("recurrence", _LAYER | {"how": "persistent", "frames": 16}, "us")
    ),
    "the same by cuDNN in a graph, input product included, µs": (
        ("recurrence", _LAYER | {"how": "cuDNN layer", "frames": 16}, "us")
    ),
    "a whole layer in one launch, input product included: 8 rows, 2 frames, µs": (
        ("recurrence", _LAYER | {"how": "whole layer", "frames": 2}, "us")
    ),
    "the same by cuDNN in a graph, µs": ("recurrence", _LAYER | {"how": "cuDNN layer", "frames": 2}, "us"),
    "a step of ds2-7x1760, 8 rows, `persistent`, µs": ("steps", _STEP | {"rung": "persistent", "rows": 8}, "us"),
    "a step of ds2-7x1760, 8 rows, `graph`, µs": ("steps", _STEP | {"rung": "graph", "rows": 8}, "us"),
    "a step of ds2-7x1760, 1 row, `eager`, µs": ("steps", _STEP | {"rung": "eager", "rows": 1}, "us"),
    "a step of tutti-small's size, 8 rows, `persistent`, µs": (
        ("steps", _STEP | {"network": "tutti-small", "rung": "persistent", "rows": 8}, "us")
    ),
    "10 live streams of ds2-7x1760, p98 from due to log-probs, ms": ("streams", _STREAMS | {"streams": 10}, "ms_p98"),
    "1,000 live streams, the same, ms": ("streams", _STREAMS | {"streams": 1_000}, "ms_p98"),
    "4,000 live streams, the same, ms": ("streams", _STREAMS | {"streams": 4_000}, "ms_p98"),
}
TABLES = (
    Table(
        "compile",
        "Compilation",
        "Host seconds until each network's kernels are compiled, one process per batch size; by af249bdb.",
    ),
    Table("probe", "Ceilings of the device", "Rates and times that a kernel, a copy or a wait reaches; by af249bdb."),
    Table(
        "bits",
        "Bits",
        "Whether results are bit-identical: a row alone and in a batch, a chunk and single steps, two rungs.",
        ("what", "network", "rung"),
        "rows",
        ("equal",),
    ),
    Table(
        "correct", "Errors", "Compared with plain arithmetic on the CPU; outputs are filled with NaN before each call."
    ),
    Table(
        "steps",
        "A step",
        "µs by rows, with the share of the roofline in parentheses. Replayed graphs; torch calls for the rung `eager`. "
        "`host to host`: from audio to log-probs in pinned memory, p50 / p98.",
        ("network", "rung", "how", "steps"),
        "rows",
        ("us", "us_p50", "us_p98"),
    ),
    Table(
        "recurrence",
        "The recurrence of one layer",
        "µs per frame, by rows; weights are read from memory (several layers in turn), except in rows marked warm. The "
        "whole layer, cuDNN's layer and torch's loop include the input product; by f79f9448.",
        ("hidden", "how", "frames", "weights"),
        "rows",
        ("us_a_frame",),
    ),
    Table(
        "streams",
        "Live streams on one thread",
        "Unsynchronized streams in real time; ms from a step's due time to its log-probs on the host. Batching and "
        "device only, without event loop and decoding.",
    ),
    Table(
        "recordings", "The shipped model on the shipped recordings", "fp16 on the device compared with fp32 on the CPU."
    ),
)


def write(results: Results, folder: Path) -> Path:
    """Write gpu.md and return its path."""
    path = folder / "gpu.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(results), encoding="utf-8")
    return path


def page(results: Results) -> str:
    """Return the whole page."""
    parts = [
        "# The GPU path, measured\n",
        "Rendered from `gpu.json` by `python -m tutti_asr_lab.benchmarks.gpu render`; its command `run` measures.\n",
        _runs(results),
        tables(results),
        _failures(results),
    ]
    return "\n".join(part for part in parts if part)


def refresh(results: Results, document: Path) -> None:
    """Write the summary between its two marks in a document. Raises: ValueError if the marks are missing."""
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document}: the marks {BEGIN} and {END} are missing")
    document.write_text(f"{before}{BEGIN}\n{summary(results)}\n{END}{after}", encoding="utf-8")


def summary(results: Results) -> str:
    """Return the table of the main figures, each with its device and date, or `never run`."""
    lines = []
    for description, (section, case, name) in SUMMARY.items():
        row = _measured_row(results, section, case, name)
        value = NEVER if row is None else _number(float(row.values[name] or 0.0))
        lines.append([description, value, _where(results, row)])
    return "\n".join(_markdown(["what", "measured", "on, at"], lines))


def _measured_row(results: Results, section: str, case: Case, name: str) -> Row | None:
    """Return the latest row with this number whose case has these entries; None as an entry means absent."""
    for row in reversed(results.latest(section)):
        number = row.values.get(name)
        measured = isinstance(number, int | float) and not isinstance(number, bool)
        if measured and all(row.case.get(key) == value for key, value in case.items()):
            return row
    return None


def _where(results: Results, row: Row | None) -> str:
    """Return the device and date of a row."""
    machine = results.machine_of(row) if row else {}
    return f"{machine.get('device', '?')}, {str(machine.get('date', '?'))[:10]}" if row else ""


def tables(results: Results, sections: Iterable[str] = ()) -> str:
    """Return the tables of these sections; of all by default."""
    chosen = [table for table in TABLES if not sections or table.section in sections]
    return "\n".join(f"## {table.title}\n\n{_body(results, table)}\n" for table in chosen)


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
    across = [row for row in rows if table.across in row.case]
    shown = _pivot(across, table) if across else []
    more = _flat([row for row in rows if table.across not in row.case], separated=bool(across))
    dry = ["", "**dry, CPU, no measurement**"] if any(results.runs[row.run].dry for row in rows) else []
    return "\n".join([table.caption, "", *shown, *more, *dry])


def _pivot(rows: Sequence[Row], table: Table) -> list[str]:
    """Return a table with a column for each value of `table.across`, a line for each combination of `table.lines`."""
    columns = sorted({row.case[table.across] for row in rows}, key=lambda value: (isinstance(value, str), value))
    named = [key for key in table.lines if any(key in row.case for row in rows)]
    grouped: dict[tuple[Value, ...], dict[Value, Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(row.case.get(key) for key in named), {})[row.case[table.across]] = row
    lines = [
        [*(_text(value) for value in line), *(_cell(cells.get(column), table.cell) for column in columns)]
        for line, cells in grouped.items()
    ]
    return _markdown([*named, *(_text(column) for column in columns)], lines)


def _cell(row: Row | None, names: Sequence[str]) -> str:
    if row is None:
        return ""
    shown = " / ".join(_text(row.values[name]) for name in names if name in row.values)
    share = row.values.get("share")
    return f"{shown} ({share:.0%})" if isinstance(share, float) else shown


def _flat(rows: Sequence[Row], *, separated: bool) -> list[str]:
    """Return tables with a line per row and a column per case entry and value; one table per set of columns."""
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        names = [name for name in row.values if name not in UNSHOWN]
        grouped.setdefault((*row.case, *names), []).append(row)
    shown: list[str] = []
    for columns, group in grouped.items():
        lines = [[_text(value) for name, value in (row.case | row.values).items() if name in columns] for row in group]
        shown += [*([""] if shown or separated else []), *_markdown(columns, lines)]
    return shown


def _failures(results: Results) -> str:
    rows = [row for table in TABLES for row in results.latest(table.section) if row.error]
    if not rows:
        return ""
    lines = [
        [row.section, " ".join(f"{k}={v}" for k, v in row.case.items()), row.error.replace("|", "/")] for row in rows
    ]
    return "\n".join(
        ["## Cases that failed or did not finish", "", *_markdown(["section", "case", "error"], lines), ""]
    )


def _text(value: Value) -> str:
    """Return a value as text of a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return _number(value) if isinstance(value, float) else str(value).replace("|", "/")


def _number(value: float) -> str:
    """Return a number with four significant digits, or as an integer from 1,000 on."""
    form: Callable[[float], str] = "{:,.0f}".format if abs(value) >= 1_000 else "{:.4g}".format
    return form(value)


def _markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    body = ["| " + " | ".join(cells) + " |" for cells in [headings, *lines]]
    return [body[0], "|" + "---|" * len(headings), *body[1:]]
