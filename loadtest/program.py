"""Command lines of the load test programs: options that several share, exit codes, a red line for expected errors."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from loadtest.errors import LoadTestError
from tutti_asr_client.errors import ClientError

EXIT_OK = 0
EXIT_BAD = 1  # no server, or a result that must not be believed or accepted
EXIT_INTERRUPTED = 130

RESULTS = Path(__file__).parent / "results"

Folder = Annotated[Path, typer.Option(help="Where the results are written.")]
Levels = Annotated[str, typer.Option(help="Levels: numbers of live streams, with commas.")]
Manifest = Annotated[
    Path | None, typer.Option(help="JSON lines, perhaps with `language`. Default: the shipped recordings.")
]
ResultName = Annotated[str, typer.Option(help="Files are written to loadtest/results/NAME.*")]
Seed = Annotated[int, typer.Option(help="Decides starts and recordings.")]
ServeOptions = Annotated[list[str] | None, typer.Option(help="Passed on to `tutti serve`; repeatable.")]
ServerUrl = Annotated[str | None, typer.Option(help="A running server. Default: one of our own.")]


def exit_code(name: str, work: Callable[[], int], *expected: type[Exception]) -> int:
    """The exit code of a program's work; an expected error is one red line on stderr and `EXIT_BAD`."""
    errors: tuple[type[Exception], ...] = (LoadTestError, ClientError, *expected)
    try:
        return work()
    except errors as error:
        Console(stderr=True).print(f"{name}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return EXIT_BAD
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def carry_out(module: str, work: Callable[[str], int], *expected: type[Exception]) -> NoReturn:
    """End a program with the exit code of its work, which gets the command line as a text. Raises: typer.Exit."""
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    raise typer.Exit(exit_code(module.rpartition(".")[2], lambda: work(command), *expected))
