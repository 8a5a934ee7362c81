"""`gpu.md`, rendered from `gpu.json`: a table a section, predictions beside it, and "never run" where nothing is.

It computes no figure but ratios, and knows no section's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.benchmarks.gpu.predict import MISSED, Compared, Prediction, ceilings_of, compared, predictions
from loadtest.benchmarks.gpu.records import Case, Results, Row, Value

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


BEGIN, END = "<!-- figures of gpu.json -->", "<!-- end of the figures -->"
_LARGE = "network=ds2-7x1760 rung"
SUMMARY = {  # what a reader is told, and the key of its prediction
    "read bandwidth of the memory, GB/s": "probe: what=read: gb_s",
    "one launch of the recurrence: 1,760 units, 8 rows, 16 frames, µs": (
        "recurrence: hidden=1760 how=persistent frames=16 rows=8: us"
    ),
    "the same by cuDNN in a graph, input product included, µs": (
        "recurrence: hidden=1760 how=cuDNN layer frames=16 rows=8: us"
    ),
    "a whole layer in one launch, input product included: 8 rows, 2 frames, µs": (
        "recurrence: hidden=1760 how=whole layer frames=2 rows=8: us"
    ),
    "the same by cuDNN in a graph, µs": "recurrence: hidden=1760 how=cuDNN layer frames=2 rows=8: us",
    "a step of ds2-7x1760, 8 rows, `persistent`, µs": f"steps: {_LARGE}=persistent rows=8: us",
    "a step of ds2-7x1760, 8 rows, `graph`, µs": f"steps: {_LARGE}=graph rows=8: us",
    "a step of ds2-7x1760, 1 row, `eager`, µs": f"steps: {_LARGE}=eager rows=1: us",
    "a step of tutti-small's size, 8 rows, `persistent`, µs": "steps: network=tutti-small rung=persistent rows=8: us",
    "10 live streams of ds2-7x1760, p98 from due to log-probs, ms": (
        f"streams: {_LARGE}=persistent streams=10: ms_p98, target"
    ),
    "1,000 live streams, the same, ms": f"streams: {_LARGE}=persistent streams=1000: ms_p98, target",
    "4,000 live streams, the same, ms": f"streams: {_LARGE}=persistent streams=4000: ms_p98, target",
}
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
    Table("sanitizer", "Sanitizer", "compute-sanitizer over a tiny network's steps by every rung."),
    Table(
        "steps",
        "A step",
        "µs, by rows, in brackets the share of the roofline. A graph replayed, but the rung `eager`: torch calls. "
        "`host to host`: audio in pinned memory to log-probs in pinned memory, p50 / p98.",
        ("network", "rung", "how", "steps"),
        "rows",
        ("us", "us_p50", "us_p98"),
    ),
    Table(
        "recurrence",
        "The recurrence of one layer",
        "µs a frame, by rows; weights from memory (several layers in turn) but in rows named warm. The whole layer, "
        "cuDNN's and the loop have the input product in them.",
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
        "Rendered from `gpu.json` by `python -m loadtest.benchmarks.gpu render`; its command `run` measures.\n",
        _runs(results),
        tables(results),
        _missed(results),
        _failures(results),
    ]
    return "\n".join(part for part in parts if part)


def refresh(results: Results, document: Path) -> None:
    """Write the summary between its two marks in a document. Raises: ValueError for a document without them."""
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no place for the figures: {BEGIN} … {END}")
    document.write_text(f"{before}{BEGIN}\n{summary(results)}\n{END}{after}", encoding="utf-8")


def summary(results: Results) -> str:
    """The figures for a reader: each with what was predicted, the device and the date, or `never run`."""
    found = {each.prediction.key: each for each in compared(results)}
    lines = []
    for what, key in SUMMARY.items():
        each = found[key]
        foretold = f"{each.prediction.bound} {_number(each.prediction.predicted)}"
        lines.append([what, _measured(each), foretold, _where(results, each.row)])
    return "\n".join(_markdown(["what", "measured", "predicted", "on, at"], lines))


def _where(results: Results, row: Row | None) -> str:
    """Device and day of a row."""
    machine = results.machine_of(row) if row else {}
    return f"{machine.get('device', '?')}, {str(machine.get('date', '?'))[:10]}" if row else ""


def tables(results: Results, sections: Iterable[str] = ()) -> str:
    """The tables of some sections, of all by default."""
    chosen = [table for table in TABLES if not sections or table.section in sections]
    return "\n".join(f"## {table.title}\n\n{_body(results, table)}\n" for table in chosen)


def predicted(results: Results) -> str:
    """Every prediction, and beside it what was measured."""
    lines = [[*_named(each), each.prediction.formula] for each in compared(results)]
    return "\n".join(_markdown(["figure", "kind", "predicted", "measured", "ratio", "from"], lines))


def _named(each: Compared) -> list[str]:
    one = each.prediction
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
    return [one.key, one.kind, f"{one.bound} {_number(one.predicted)}", _measured(each), ratio]


def _measured(each: Compared) -> str:
    return NEVER if each.measured is None else _number(each.measured)


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
    shown = _pivot(across, table, results) if across else []
    more = _flat([row for row in rows if table.across not in row.case], separated=bool(across))
    dry = ["", "**dry, CPU, no measurement**"] if any(results.runs[row.run].dry for row in rows) else []
    return "\n".join([table.says, "", *shown, *more, *dry])


def _pivot(rows: Sequence[Row], table: Table, results: Results) -> list[str]:
    """Rows with the column's entry; under a line that was foretold, what was foretold."""
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
        for each in predictions(ceilings_of(results))
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
    shown = " / ".join(_text(row.values[name]) for name in names if name in row.values)
    share = row.values.get("share")
    return f"{shown} ({share:.0%})" if isinstance(share, float) else shown


def _flat(rows: Sequence[Row], *, separated: bool) -> list[str]:
    """A line a row, a column for every entry of a case and every value; a table for rows of the same columns."""
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        names = [name for name in row.values if name not in UNSHOWN]
        grouped.setdefault((*row.case, *names), []).append(row)
    shown: list[str] = []
    for columns, group in grouped.items():
        lines = [[_text(value) for name, value in (row.case | row.values).items() if name in columns] for row in group]
        shown += [*([""] if shown or separated else []), *_markdown(columns, lines)]
    return shown


def _missed(results: Results) -> str:
    """Predictions that were off by more than `MISSED`, with the reason where one was given."""
    every = compared(results)
    measured = sum(each.row is not None for each in every)
    lines = [[*_named(each), results.reasons.get(each.prediction.key, "")] for each in every if each.missed]
    text = f"## Predictions\n\n{len(every)} figures were predicted, {measured} of them measured, "
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
