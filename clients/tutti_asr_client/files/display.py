"""How transcripts are shown while they grow: on a terminal, or as lines of JSON.

Owns what reaches the user's eyes. Knows no socket, and does not decide what is recognised.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tutti_asr_client.files.file_result import Failed, Outcome, final_line, outcome_line
from tutti_asr_client.messages import Results
from tutti_asr_client.transcript import Transcript

REFRESH_HZ = 12.5
"""One redraw per 80 ms step: a partial cannot change faster."""


class Display(Protocol):
    """Is entered before the first file and left after the last."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:
        """One message about a file has come, and has been added to its transcript."""
        ...

    def done(self, outcome: Outcome) -> None:
        """Nothing more comes about this file."""
        ...


class SilentDisplay:
    """Shows nothing: for callers that want the outcomes alone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:
        """Ignored."""

    def done(self, outcome: Outcome) -> None:
        """Ignored."""


class JsonLines(SilentDisplay):
    """One line of JSON per final, and one that closes each file."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:  # noqa: ARG002 - finals only
        """Write the finals."""
        if results.is_final:
            self._write(final_line(path, results))

    def done(self, outcome: Outcome) -> None:
        """Write the closing line."""
        self._write(outcome_line(outcome))

    def _write(self, line: str) -> None:
        print(line, file=self._out, flush=True)


class TerminalDisplay:
    """A live line per open file, stable words solid and the others dim; finished files above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open: dict[Path, Text] = {}
        self._live = Live(console=console, refresh_per_second=REFRESH_HZ, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:  # noqa: ARG002 - it is added
        """Redraw the file's line."""
        self._open[path] = growing(path, transcript)
        self._draw()

    def done(self, outcome: Outcome) -> None:
        """Move the file's line up, with its figures."""
        self._open.pop(outcome.path, None)
        self._draw()
        self._console.print(finished(outcome))

    def _draw(self) -> None:
        self._live.update(Text("\n").join(self._open.values()))


def growing(path: Path, transcript: Transcript) -> Text:
    """The line of a file that is being recognised."""
    solid = " ".join(part for part in (transcript.text, transcript.stable) if part)
    line = Text.assemble((f"{path.name}  ", "cyan"), (solid, "default"))
    if transcript.unstable:
        line.append(f" {transcript.unstable}" if solid else transcript.unstable, style="dim")
    return line


def finished(outcome: Outcome) -> Text:
    """The line of a file that is done."""
    if isinstance(outcome, Failed):
        return Text.assemble((f"{outcome.path.name}  ", "cyan"), (outcome.problem, "red"))
    figures = (
        f"  [{outcome.duration_s:.1f} s, {outcome.real_time_factor:.3f} × real time, "
        f"final after {outcome.final_latency_s * 1e3:.0f} ms]"
    )
    return Text.assemble((f"{outcome.path.name}  ", "cyan"), outcome.text, (figures, "dim"))
