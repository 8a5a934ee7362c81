"""`tutti demo`: a server process, the shipped recording in real time, the words that were spoken."""

from __future__ import annotations

import io
import re

from rich.console import Console

from loadtest.demo import run_demo
from loadtest.program import EXIT_OK


def test_the_demo_recognises_every_word_and_says_how_long_answers_took() -> None:
    shown = io.StringIO()
    status = run_demo(Console(file=shown, width=200))
    assert status == EXIT_OK, shown.getvalue()
    assert "the transcript is correct." in shown.getvalue()
    assert re.search(r"\d+(\.\d+)? ms", shown.getvalue())
