"""Output of `tutti evaluate`: one JSON document, and a table with a column for each combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from model.evaluation.normalization import DESCRIPTIONS, remedy

Figures = dict[str, Any]
_WIDTH = 120  # if the output is not a terminal
_SHOWN = {  # in the table and in the notes
    *("wer", "cer", "wer_interval", "cer_interval", "bootstrap", "by_source", "by_part", "utterances"),
    *("precision", "decoder", "codec", "words", "insertions", "deletions", "substitutions"),
    *("normalize", "references_normalized", "transcripts_normalized", "references_without_words"),
    *("references_in_characters", "one_sided", "log_prob_difference_to_fp32", "real_time_factor", "partials"),
    *("core_s_per_hour", "against"),
}


def document(combinations: Sequence[Figures]) -> Figures:
    """Return all combinations under `combinations`, with the keys of the first one also at the top level."""
    return {**combinations[0], "combinations": list(combinations)}


def report_console(*, as_json: bool) -> Console:
    """Return the console for the table: standard error if JSON goes to standard output."""
    console = Console(stderr=as_json)
    return console if console.is_terminal else Console(stderr=as_json, width=_WIDTH)


def print_report(combinations: Sequence[Figures], console: Console) -> None:
    """Print the table, then notes and warnings, then a line of facts for each combination."""
    console.print(report_table(combinations))
    warnings = [warning for figures in combinations for warning in _warnings(figures)]
    for note in dict.fromkeys([*_notes(combinations), *warnings]):  # combinations may share a warning
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    for figures in combinations:
        rest = {k: v for k, v in figures.items() if k not in _SHOWN}
        line = ", ".join(f"{name} {value}" for name, value in rest.items())
        console.print(f"{_label(figures)}: {line}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _notes(combinations: Sequence[Figures]) -> list[str]:
    """Return sentences about what was compared, and about the intervals."""
    first, notes = combinations[0], []
    name, of = first["normalize"], f"of the {first['utterances']} references"
    changed = max(figures["transcripts_normalized"] for figures in combinations)
    most = "up to " if len(combinations) > 1 and changed else ""
    notes.append(
        f"normalization: {name} ({DESCRIPTIONS[name]}); it changed {first['references_normalized']} {of} and "
        f"{most}{changed} of the transcripts"
    )
    if count := first["references_in_characters"]:
        notes.append(f"{count} {of} are compared by characters: simplified, without punctuation and spaces")
    if count := first["references_without_words"]:
        notes.append(f"{count} {of} have no words after normalization: each word recognized there is an insertion")
    if first["wer_interval"] is not None:
        facts = first["bootstrap"]
        share, resamples = f"{facts['confidence']:.0%}", f"{facts['resamples']:,}"
        notes.append(f"in parentheses: {share} intervals, from {resamples} resamples of the recordings")
    return notes


def _warnings(figures: Figures) -> list[str]:
    """Return sentences about writing that one side uses and the other does not."""
    name, total = figures["normalize"], figures["utterances"]
    return [
        f"warning: {count['references']} of the {total} references have {kind}, and {count['transcripts']} of the "
        f"transcripts: each difference counts as an error; {remedy(name, kind)}"
        for kind, count in figures["one_sided"].items()
    ]


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
        ("WER", lambda f: _rate(f, "wer", 4)),
        ("CER", lambda f: _rate(f, "cer", 4)),
        (f"{_unit(first)} in the references", lambda f: str(f["words"])),
        ("substitutions", lambda f: str(f["substitutions"])),
        ("deletions", lambda f: str(f["deletions"])),
        ("insertions", lambda f: str(f["insertions"])),
        *((f"WER {source}", _of_source(source)) for source in first["by_source"]),
        *((f"WER, part {part}", _of_part(part)) for part in first.get("by_part", ())),
        ("largest Δ log-prob to fp32", lambda f: _number(f.get("log_prob_difference_to_fp32", {}).get("largest"))),
        ("real-time factor", lambda f: _number(f["real_time_factor"])),
        ("core-seconds per hour", lambda f: _number(f["core_s_per_hour"])),
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
    names = ("against", "precision", "decoder", "codec")
    return " ".join(str(figures[name]) for name in names if name in figures) or "server"


def _of_source(source: str) -> Callable[[Figures], str]:
    return lambda figures: _rate(figures["by_source"][source], "wer", 3)


def _of_part(part: str) -> Callable[[Figures], str]:
    return lambda figures: _rate(figures["by_part"][part], "wer", 4)


def _rate(figures: Figures, name: str, digits: int) -> str:
    """Return an error rate, and its interval if there is one."""
    rate, interval = f"{figures[name]:.{digits}f}", figures[f"{name}_interval"]
    return rate if interval is None else f"{rate} ({interval[0]:.{digits}f}–{interval[1]:.{digits}f})"


def _unit(figures: Figures) -> str:
    """Return what is counted: words, characters, or both in references of several languages."""
    characters = figures["references_in_characters"]
    return "words" if not characters else "characters" if characters == figures["utterances"] else "words, characters"


def _of_partials(name: str) -> Callable[[Figures], str]:
    return lambda figures: _number(figures.get("partials", {}).get(name))


def _mean(name: str) -> Callable[[Figures], str]:
    return lambda figures: _number((figures.get("partials", {}).get(name) or {}).get("mean"))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
