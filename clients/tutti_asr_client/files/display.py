"""Displays of growing transcripts: on a terminal, or as JSON lines."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tutti_asr_client.files.file_result import Failed, FileResult, file_result_line, final_line
from tutti_asr_client.messages import Results, joined
from tutti_asr_client.transcript import Transcript

REFRESH_HZ = 12.5
"""One redraw per 80 ms step: a partial cannot change faster."""


class Display(AbstractContextManager["Display"]):
    """Display of the messages and results of all files. This one shows nothing, for callers that need only results."""

    def __exit__(self, *_: object) -> None:
        """Show nothing more."""

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:
        """Show a file's new message, already added to its transcript."""

    def done(self, result: FileResult) -> None:
        """Show a file's result."""


class JsonLines(Display):
    """Display that writes one JSON line per final, and one per finished file."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:  # noqa: ARG002 - finals only
        """Write the finals."""
        if results.is_final:
            self._write(final_line(path, results))

    def done(self, result: FileResult, **further: object) -> None:
        """Write the closing line."""
        self._write(file_result_line(result, **further))

    def _write(self, line: str) -> None:
        encoding = (getattr(self._out, "encoding", None) or "utf-8").lower()
        if not line.isascii() and "utf" not in encoding:
            line = json.dumps(json.loads(line))  # ASCII with escapes, valid in any encoding
        print(line, file=self._out, flush=True)


class _LiveDisplay(Display):
    """Display whose last lines are drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=REFRESH_HZ, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


class TerminalDisplay(_LiveDisplay):
    """Display with a live line per open file, unstable words dim, and finished files above."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._open: dict[Path, Text] = {}

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:  # noqa: ARG002 - already in the transcript
        """Redraw the file's line."""
        self._open[path] = growing(path, transcript)
        self._draw()

    def done(self, result: FileResult) -> None:
        """Move the file's line up, with its figures."""
        self._open.pop(result.path, None)
        self._draw()
        self._console.print(finished(result))

    def _draw(self) -> None:
        self._live.update(Text("\n").join(self._open.values()))


class UtteranceDisplay(_LiveDisplay):
    """Display of one live source: one line per final; on a terminal, the words after it are drawn live."""

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:  # noqa: ARG002 - one source
        """Print a final; redraw the words after it."""
        if results.is_final and results.text:
            self._console.print(results.text, highlight=False, markup=False, soft_wrap=True)
        self._live.update(_parts(transcript.stable, transcript.unstable))

    def done(self, result: FileResult) -> None:
        """Report a failure."""
        if isinstance(result, Failed):
            Console(stderr=True).print(result.problem, style="red", highlight=False, markup=False, soft_wrap=True)


def growing(path: Path, transcript: Transcript) -> Text:
    """Return the line of a file in progress."""
    solid = joined(part for part in (transcript.text, transcript.stable) if part)
    return Text.assemble((f"{path.name}  ", "cyan"), _parts(solid, transcript.unstable))


def _parts(solid: str, unstable: str) -> Text:
    """Return text whose unstable end is dim."""
    whole = joined(part for part in (solid, unstable) if part)
    return Text.assemble((solid, "default"), (whole[len(solid) :], "dim"))


def finished(result: FileResult) -> Text:
    """Return the line of a finished file."""
    if isinstance(result, Failed):
        return Text.assemble((f"{result.path.name}  ", "cyan"), (result.problem, "red"))
    figures = (
        f"  [{result.duration_s:.1f} s, {result.real_time_factor:.3f} × real time, "
        f"final after {result.final_latency_s * 1e3:.0f} ms]"
    )
    return Text.assemble((f"{result.path.name}  ", "cyan"), result.text, (figures, "dim"))
