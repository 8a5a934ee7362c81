"""Command lines of the load test programs: shared options, exit codes, and output of expected errors."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from loadtest.errors import LoadTestError
from tutti_asr_client.errors import ClientError

EXIT_OK = 0
EXIT_BAD = 1  # no server, or a result that is invalid or misses a criterion
EXIT_INTERRUPTED = 130

RESULTS = Path(__file__).parent / "results"

Folder = Annotated[Path, typer.Option(help="Folder for the results.")]
Levels = Annotated[str, typer.Option(help="Load levels: numbers of live streams, with commas.")]
Manifest = Annotated[
    Path | None, typer.Option(help="Recordings as JSON lines, optionally with `language`. Default: the shipped ones.")
]
ResultName = Annotated[str, typer.Option(help="Name of the result files, loadtest/results/NAME.*")]
Seed = Annotated[int, typer.Option(help="Random seed for start times and recordings.")]
ServeOptions = Annotated[list[str] | None, typer.Option(help="Option for `tutti serve`; repeatable.")]
ServerUrl = Annotated[str | None, typer.Option(help="URL of a running server. Default: a server is started.")]


def exit_code(name: str, work: Callable[[], int], *expected: type[Exception]) -> int:
    """Run `work` and return its exit code; an expected error is printed in red on stderr and returns `EXIT_BAD`."""
    errors: tuple[type[Exception], ...] = (LoadTestError, ClientError, *expected)
    try:
        return work()
    except errors as error:
        Console(stderr=True).print(f"{name}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return EXIT_BAD
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def carry_out(module: str, work: Callable[[str], int], *expected: type[Exception]) -> NoReturn:
    """Run `work` with the command line as text and exit with its code. Raises: typer.Exit.

    SIGTERM ends it as Ctrl-C does, with the servers that it started.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    raise typer.Exit(exit_code(module.rpartition(".")[2], lambda: work(command), *expected))
