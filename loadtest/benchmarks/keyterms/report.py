"""Key terms: recall, the error rate of all other words and false terms, as JSON, Markdown and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from loadtest.reports import pages
from loadtest.reports.environment import Environment
from model.evaluation.scoring import TermScore

HEADINGS = ("recordings", "key terms", "terms said", "recall", "WER of other words", "false terms")
NAME = "keyterms"


class Row(msgspec.Struct, frozen=True):
    """One kind of recording under one condition; `distractors` is None without a list."""

    kind: str
    distractors: int | None
    recordings: int
    said: int
    recalled: int
    recall: float | None
    other_words: int
    other_errors: int
    other_wer: float | None
    false_terms: int


class Keyterms(msgspec.Struct, frozen=True):
    """The result document."""

    command: str
    settings: dict[str, str | int | float | None]
    rows: tuple[Row, ...]
    environment: Environment


def row(kind: str, distractors: int | None, scores: Sequence[TermScore]) -> Row:
    """Pool the scores of one kind under one condition."""
    total = sum(scores, TermScore())
    return Row(
        kind=kind,
        distractors=distractors,
        recordings=len(scores),
        said=total.terms,
        recalled=total.recalled,
        recall=round(total.recalled / total.terms, 4) if total.terms else None,
        other_words=total.other_words,
        other_errors=total.other_errors,
        other_wer=round(total.other_errors / total.other_words, 4) if total.other_words else None,
        false_terms=total.false_terms,
    )


def cells(one: Row) -> tuple[str, ...]:
    """Return a row as cells of a table."""
    given = "none" if one.distractors is None else f"own + {one.distractors} others" if one.distractors else "own"
    return (
        f"{one.kind}, {one.recordings}",
        given,
        str(one.said),
        pages.number(one.recall, ".3f"),
        pages.number(one.other_wer, ".4f"),
        str(one.false_terms),
    )


def table(found: Keyterms) -> Table:
    """Return the rows as a table for a terminal."""
    shown = Table(*HEADINGS, title="key terms that the language model does not know", title_justify="left")
    for one in found.rows:
        shown.add_row(*cells(one))
    return shown


def markdown(found: Keyterms) -> str:
    """Return the measurement as a page."""
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items() if value is not None)
    lines = ["# Key terms that the language model does not know", "", f"`{found.command}`", ""]
    lines += [
        "Own: terms spoken in a recording, if any. Others: terms not spoken in it. Real recordings without terms are",
        "decoded with only the others, to measure the effect of a list on other words.",
        "",
    ]
    table_lines = pages.table(HEADINGS, map(cells, found.rows))
    return "\n".join([*lines, *table_lines, "", f"{settings}.  ", *pages.place_lines(found.environment), ""])


def write(found: Keyterms, folder: Path) -> list[Path]:
    """Write keyterms.json and keyterms.md and return their paths."""
    return pages.write(found, markdown(found), folder, NAME)
