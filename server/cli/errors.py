"""Errors of the command line: one line each on standard error, `tutti: what is wrong; what to do`.

Of wrong usage it is click's own sentence, of an invalid setting pydantic's, after the option and the variable that set
it. Values of settings are never shown: they may be keys. Wrong usage exits with status 2, a failed command with 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

from server.configuration.variables import spelled

if TYPE_CHECKING:
    from pydantic import ValidationError

EXIT_FAILED, EXIT_USAGE, EXIT_ADDRESS, EXIT_INTERRUPTED = 1, 2, 3, 130
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)
"""Base class of all usage errors: click's, or that of typer's own copy of click, depending on typer's version."""
SHOWN = 60  # characters of a value that an error shows


def fail(error: Exception | str, *, status: int = EXIT_FAILED) -> NoReturn:
    """Exit with the status and the error in one line; a setting that it begins with is named as an operator does."""
    from server.settings import Settings

    setting, colon, problem = str(error).partition(": ")
    complain(f"{spelled(setting)}: {problem}" if colon and setting in Settings.model_fields else str(error))
    raise typer.Exit(status) from (error if isinstance(error, Exception) else None)


def refuse(problem: Exception | str) -> NoReturn:
    """Exit with status 2 (wrong usage) and the problem in one line."""
    complain(str(problem))
    raise typer.Exit(EXIT_USAGE) from (problem if isinstance(problem, Exception) else None)


def complain(problem: str) -> None:
    """Print a problem in one line and continue."""
    typer.echo(f"tutti: {' '.join(problem.split())}", err=True)


def bad_option(option: str, value: object, problem: str) -> typer.BadParameter:
    """Return a usage error for an option's value, for checks that only the command can make."""
    return typer.BadParameter(f"{option} {shorten(str(value))}: {problem}")


def given_options(context: typer.Context, names: Collection[str]) -> Iterator[str]:
    """Yield the options of these parameters that stand on the command line, in the order of the command."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "") if parameter.name in names else None
        if source is not None and source.name == "COMMANDLINE":
            yield parameter.opts[0]


def refuse_ignored(context: typer.Context, names: Collection[str], why: str) -> None:
    """Exit with status 2 if an option of these parameters stands on the command line: the command would ignore it."""
    for option in given_options(context, names):
        refuse(f"{option}: {why}")


def shorten(value: str) -> str:
    """Return a value for an error message: quoted if empty or with spaces, cut to `SHOWN` characters."""
    text = value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
    return repr(text) if not text or text != "".join(text.split()) else text


class OneLineErrors(TyperGroup):
    """Root command group: reports every usage error, its commands' included, in one line."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the arguments."""
        with _in_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. A file that cannot be read or written is also reported in one line."""
        with _in_one_line():
            try:
                return super().invoke(ctx)
            except (OSError, ExceptionGroup) as error:
                of_file = _of_file(error)
                if of_file is None:
                    raise
                fail(f"{of_file.filename}: {of_file.strerror}")
            except Exception as error:  # of a model, from an import: a package is missing, or machine code damaged
                from model.errors import ModelError

                if not isinstance(error, ModelError):
                    raise
                fail(error)


def _of_file(error: Exception) -> OSError | None:
    """Return an error about a file; of a group of tasks the first one, if all its errors are about files."""
    if isinstance(error, ExceptionGroup):
        causes = [_of_file(exception) for exception in error.exceptions]
        return causes[0] if all(causes) else None
    return error if isinstance(error, OSError) and error.filename is not None else None


@contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been shown
            raise
        refuse(_described(error))


def _described(error: typer.BadParameter) -> str:
    """Return a usage error as one line, in click's words."""
    if isinstance(error, typer.BadParameter):
        return error.message if error.param is None and error.message else error.format_message()
    advice = "" if error.ctx is None else f"; see `{error.ctx.command_path} --help`"
    return f"{error.format_message().rstrip('.')}{advice}"


def problems_of(error: ValidationError) -> list[str]:
    """Return one sentence of pydantic's for each invalid setting."""
    problems: dict[str, list[str]] = {}
    for problem in error.errors(include_input=False):
        setting, *inner = problem["loc"] or problem["ctx"]["settings"]
        item = ".".join(map(str, inner)) + ": " if inner and isinstance(inner[0], int) else ""  # of a list
        problems.setdefault(str(setting), []).append(item + problem["msg"].removeprefix("Value error, "))
    return [f"{spelled(setting)}: {'; '.join(messages)}" for setting, messages in problems.items()]
