"""How the programs of this folder end: bars shown, files written, one JSON document last, an exit code.

Knows no measurement of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
import typer
from rich.console import Console

from loadtest.criteria import Bar, unmet, write
from loadtest.errors import LoadTestError
from loadtest.measurement.run import EXIT_BAD, EXIT_INTERRUPTED, EXIT_OK
from tutti_asr_client.errors import ClientError


class Judged(Protocol):
    """A result with what had to hold."""

    @property
    def bars(self) -> Sequence[Bar]: ...  # noqa: D102


def show(bars: Sequence[Bar], console: Console) -> None:
    """A line each, coloured by whether it held."""
    for bar in bars:
        console.print(bar.line, style="green" if bar.met else "red", highlight=False)


def conclude(found: Judged, page: str, folder: Path, name: str, console: Console) -> int:
    """Show the bars, write NAME.json and NAME.md, print the result; returns the exit code."""
    assert isinstance(found, msgspec.Struct)
    show(found.bars, console)
    for path in write(found, page, folder, name):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    typer.echo(msgspec.json.encode(found).decode())
    return EXIT_BAD if unmet(found.bars) else EXIT_OK


def carry_out(program: str, work: Callable[[], int]) -> NoReturn:
    """End the program with the exit code of its work; an error that it may have is one red line. Raises: typer.Exit."""
    try:
        code = work()
    except (LoadTestError, ClientError) as error:
        Console(stderr=True).print(f"{program}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        code = EXIT_BAD
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    raise typer.Exit(code)
