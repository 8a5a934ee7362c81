"""The `tutti` command and its subcommands; each reads its options and calls one function that does the work.

Heavy imports are inside the commands, so that `tutti --help` and the clients never load torch.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer

from server.cli.errors import EXIT_FAILED, OneLineErrors, complain, refuse
from server.cli.evaluate import evaluate
from server.cli.keys import keys as keys_commands
from server.cli.loadtest import ceiling, demo, loadtest
from server.cli.model import model as model_commands
from server.cli.operate import doctor, drain, serve
from server.cli.operate import engine as engine_commands
from server.cli.options import CheckedCommand, SettingsCommand
from server.cli.receipts import replay
from server.cli.transcribe import listen, transcribe
from server.cli.usage import usage
from server.cli.voice import voice as voice_commands

app = typer.Typer(
    name="tutti",
    cls=OneLineErrors,
    help="Streaming speech recognition: a low-latency batching inference server, its clients and its tools.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tutti {version('tutti-asr')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


app.command(cls=SettingsCommand)(serve)
app.command(cls=SettingsCommand)(doctor)
for command in (transcribe, listen, loadtest, demo, ceiling, evaluate, drain, usage, replay):
    app.command(cls=CheckedCommand)(command)
app.add_typer(model_commands, name="model")
app.add_typer(keys_commands, name="keys")
app.add_typer(voice_commands, name="voice")
app.add_typer(engine_commands, name="engine")

LAB = ("train", "quantize", "export", "synthesize", "lm", "plan", "calibrate")
"""Commands of tutti-asr-lab."""


def _install_lab(context: typer.Context) -> None:
    lab = "pip install 'tutti-asr[training]' (in a checkout: pip install -e ./clients -e . -e ./lab)"
    refuse(f"{context.info_name}: not installed; {lab}")


_others = entry_points(group="tutti.commands")
for _commands in _others:
    _commands.load()(app)
for _name in () if _others else LAB:
    _any = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(_name, hidden=True, add_help_option=False, context_settings=_any)(_install_lab)


EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE, as shells report it."""
UNWRITTEN = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """Run the command line. Exits without an error message if the output pipe is closed, for example by `head`."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as some schedulers do
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and name != "stdin":
            stream.reconfigure(errors="backslashreplace")  # for terminals limited to ASCII
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except (OSError, BaseExceptionGroup) as error:
        if BaseExceptionGroup("", [error]).split(_is_unwritten)[1] is not None:
            raise
        _end_unwritten(error)


def _is_unwritten(error: BaseException) -> bool:
    """Whether output could not be written: its reader has gone, or its disk is full."""
    return isinstance(error, OSError) and error.errno in UNWRITTEN


def _end_unwritten(error: OSError | BaseExceptionGroup[Any]) -> None:
    """Exit and drop buffered output: the interpreter would otherwise report a second error when it flushes."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:
        complain(f"output: {error.strerror}")
    raise SystemExit(EXIT_BROKEN_PIPE if error.errno == errno.EPIPE else EXIT_FAILED)
