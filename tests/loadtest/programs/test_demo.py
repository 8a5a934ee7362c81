"""`tutti demo`: a server process, a shipped recording in real time, and its transcript."""

from __future__ import annotations

import io
import re

from rich.console import Console

from loadtest.demo import run_demo
from loadtest.program import EXIT_OK


def test_the_demo_recognizes_every_word_and_prints_latencies() -> None:
    shown = io.StringIO()
    status = run_demo(Console(file=shown, width=200))
    assert status == EXIT_OK, shown.getvalue()
    assert "the transcript is correct." in shown.getvalue()
    lines = re.findall(r"^ *[\d.]+ s  (partial|final) *(.*)$", shown.getvalue(), re.MULTILINE)
    assert {kind for kind, _ in lines} == {"partial", "final"}
    assert all(text for _, text in lines), "no line without text"
    assert re.search(r"\d+(\.\d+)? ms", shown.getvalue())
