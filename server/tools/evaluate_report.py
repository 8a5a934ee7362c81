"""Output of `tutti evaluate`: one JSON document, and a table with a column for each combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Figures = dict[str, Any]
_WIDTH = 120  # if the output is not a terminal
_IN_TABLE = {
    *("wer", "cer", "by_source", "by_part", "utterances", "precision", "decoder", "codec"),
    *("words", "insertions", "deletions", "substitutions", "references_normalized", "references_with_digits"),
    *("log_prob_difference_to_fp32", "real_time_factor", "partials"),
}


def document(combinations: Sequence[Figures]) -> Figures:
    """Return all combinations under `combinations`, with the keys of the first one also at the top level."""
    return {**combinations[0], "combinations": list(combinations)}


def report_console(*, as_json: bool) -> Console:
    """Return the console for the table: standard error if JSON goes to standard output."""
    console = Console(stderr=as_json)
    return console if console.is_terminal else Console(stderr=as_json, width=_WIDTH)


def print_report(combinations: Sequence[Figures], console: Console) -> None:
    """Print the table, then a line of facts for each combination."""
    console.print(report_table(combinations))
    for note in _notes(combinations[0]):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    for figures in combinations:
        rest = {k: v for k, v in figures.items() if k not in _IN_TABLE}
        line = ", ".join(f"{name} {value}" for name, value in rest.items())
        console.print(f"{_label(figures)}: {line}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _notes(figures: Figures) -> list[str]:
    """Return sentences about the normalization of references."""
    notes, of = [], f"of the {figures['utterances']} references"
    if count := figures.get("references_normalized"):
        notes.append(f"capitals and punctuation of {count} {of} are normalized before comparison")
    if count := figures.get("references_with_digits"):
        notes.append(f"{count} {of} have digits, but transcripts spell numbers as words: each counts as an error")
    return notes


def report_table(combinations: Sequence[Figures]) -> Table:
    """Return the table: error rates pooled and by source, largest log-prob difference, speed, and partials if any."""
    table = Table(title=f"{combinations[0]['utterances']} recordings", title_justify="left")
    table.add_column("")
    for figures in combinations:
        table.add_column(_label(figures), justify="right")
    for name, cell in _rows(combinations[0]):
        table.add_row(name, *(cell(figures) for figures in combinations))
    return table


def _rows(first: Figures) -> list[tuple[str, Callable[[Figures], str]]]:
    rows: list[tuple[str, Callable[[Figures], str]]] = [
        ("WER", lambda f: f"{f['wer']:.4f}"),
        ("CER", lambda f: f"{f['cer']:.4f}"),
        ("words in the references", lambda f: str(f["words"])),
        ("substitutions", lambda f: str(f["substitutions"])),
        ("deletions", lambda f: str(f["deletions"])),
        ("insertions", lambda f: str(f["insertions"])),
        *((f"WER {source}", _of_source(source)) for source in first["by_source"]),
        *((f"WER, part {part}", _of_part(part)) for part in first.get("by_part", ())),
        ("largest Δ log-prob to fp32", lambda f: _number(f.get("log_prob_difference_to_fp32", {}).get("largest"))),
        ("real-time factor", lambda f: _number(f["real_time_factor"])),
    ]
    if "partials" not in first:
        return rows
    return [
        *rows,
        ("words shown in partials", _of_partials("shown_words")),
        ("share of them changed later", _of_partials("changed_share")),
        ("of these not as the last word", _of_partials("changed_before_last_share")),
        ("changes per final word", _of_partials("changed_per_final_word")),
        ("stable words that changed", _of_partials("stable_words_changed")),
        ("shown to stable, mean ms", _mean("shown_to_stable_ms")),
        ("word end to stable, mean ms", _mean("word_end_to_stable_ms")),
    ]


def _label(figures: Figures) -> str:
    return " ".join(str(figures[name]) for name in ("precision", "decoder", "codec") if name in figures) or "server"


def _of_source(source: str) -> Callable[[Figures], str]:
    return lambda figures: f"{figures['by_source'][source]['wer']:.3f}"


def _of_part(part: str) -> Callable[[Figures], str]:
    return lambda figures: f"{figures['by_part'][part]['wer']:.4f}"


def _of_partials(name: str) -> Callable[[Figures], str]:
    return lambda figures: _number(figures["partials"][name])


def _mean(name: str) -> Callable[[Figures], str]:
    return lambda figures: _number((figures["partials"][name] or {}).get("mean"))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
