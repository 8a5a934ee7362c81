"""Errors of the command line: one line each on standard error, `tutti: what is wrong; what to do`.

Of wrong usage it is click's own sentence, of an invalid setting pydantic's with the option or the `TUTTI_…` variable
before it. Values of keys are never shown. Wrong usage exits with status 2, a failed command with 1. This module does
not depend on any command.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from pydantic import ValidationError

EXIT_FAILED, EXIT_USAGE, EXIT_ADDRESS, EXIT_INTERRUPTED = 1, 2, 3, 130
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)
"""Base class of all usage errors: click's, or that of typer's own copy of click, depending on typer's version."""
SHOWN = 60  # characters of a value that an error shows


def fail(error: Exception | str, options: Mapping[str, Any] | None = None, *, status: int = EXIT_FAILED) -> NoReturn:
    """Exit with the status and the error in one line; `options` are the given ones, by setting."""
    _say(_named(str(error), options or {}))
    raise typer.Exit(status) from (error if isinstance(error, Exception) else None)


def refuse(problem: Exception | str) -> NoReturn:
    """Exit with status 2 (wrong usage) and the problem in one line."""
    _say(str(problem))
    raise typer.Exit(EXIT_USAGE) from (problem if isinstance(problem, Exception) else None)


def complain(problem: str) -> None:
    """Print a problem and continue."""
    _say(problem)


def _say(problem: str) -> None:
    typer.echo(f"tutti: {' '.join(problem.split())}", err=True)


def bad_option(option: str, value: object, problem: str) -> typer.BadParameter:
    """Return a usage error for an option's value, for checks that only the command can make."""
    return typer.BadParameter(f"{option} {shorten(str(value))}: {problem}")


def given_options(context: typer.Context, names: Collection[str]) -> Iterator[str]:
    """Yield the options of these parameters that stand on the command line, in the order of the command."""
    for name in (name for name in context.params if name in names):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield f"--{name.removeprefix('as_').replace('_', '-')}"


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
            except ImportError as error:
                from model.errors import MissingPackage

                if not isinstance(error, MissingPackage):
                    raise
                fail(error)


def _of_file(error: Exception) -> OSError | None:
    """Return an error about a file; of a group of tasks the first one, if all its errors are about files."""
    if isinstance(error, ExceptionGroup):
        found = [_of_file(exception) for exception in error.exceptions]
        return found[0] if all(found) else None
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
        return error.message if error.param is None and error.message else _sentence(error.format_message())
    if error.ctx is None:
        return error.format_message()
    advice = f"see `{error.ctx.command_path} --help`"
    given = error.ctx.params
    parameters = error.ctx.command.params
    repeated = [
        parameter.opts[0]
        for parameter in parameters
        if getattr(parameter, "multiple", False) and given.get(parameter.name)
    ]
    if repeated and "extra argument" in error.message:  # an option takes the first of several values alone
        advice = f"each value needs its own {' or '.join(repeated)}; {advice}"
    return f"{error.format_message().rstrip('.')}; {advice}"


def check_given(command: Any, context: Any, arguments: list[str]) -> None:
    """Reject empty values. Raises: UsageError.

    A script with an unset variable passes an empty value; as a path it would mean the working directory.
    """
    given, _, _ = command.make_parser(context).parse_args(args=list(arguments))
    for parameter in command.get_params(context):
        value = given.get(parameter.name)
        if "" in (value if isinstance(value, (list, tuple)) else [value]) and parameter.default != "":
            raise typer.BadParameter("must not be empty; leave it out", ctx=context, param=parameter)


def check_numbers(command: Any, context: Any) -> None:
    """Reject infinities and NaN in options. Raises: UsageError."""
    for parameter in command.get_params(context):
        value = context.params.get(parameter.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise typer.BadParameter("must be a finite number", ctx=context, param=parameter)


def setting_name(setting: str, options: Mapping[str, Any]) -> str:
    """Return the option that set this setting, or else its variable."""
    if options.get(setting) not in (None, [], ()):
        return f"--{setting.replace('_', '-')}"
    return _variable(setting)


def _variable(setting: str) -> str:
    """Return the variable of a setting as spelled in the environment; case is ignored."""
    name = f"TUTTI_{setting}".upper()
    return next((found for found in os.environ if found.upper() == name), name)


def _named(problem: str, options: Mapping[str, Any]) -> str:
    """Replace the setting's name at the start of an error by the option or variable that set it."""
    from server.settings import Settings

    head, colon, rest = problem.partition(": ")
    return f"{setting_name(head, options)}: {rest}" if colon and head in Settings.model_fields else problem


def problems_of(error: ValidationError, options: Mapping[str, Any]) -> list[str]:
    """Return one sentence of pydantic's for each invalid setting; `options` are the given ones."""
    found: dict[str, list[str]] = {}
    for problem in error.errors(include_input=False):
        at = problem["loc"] or problem.get("ctx", {}).get("settings", ())
        setting = str(at[0]) if at else ""
        inner = ".".join(map(str, at[1:])) + ": " if len(at) > 1 and isinstance(at[1], int) else ""  # of a list
        found.setdefault(setting, []).append(inner + _sentence(problem["msg"]))
    return [
        "; ".join(([f"{_with_value(setting, options)}: {messages[0]}", *messages[1:]]) if setting else messages)
        for setting, messages in found.items()
    ]


def is_secret(name: str) -> bool:
    """Whether values of an option or setting are secret and must not be shown."""
    return re.search(r"key|token|secret", name) is not None and not name.endswith(("_file", "per_key", "by_key"))


def _with_value(setting: str, options: Mapping[str, Any]) -> str:
    """Return the option or variable of a setting, with its value unless it may be secret."""
    from server.settings import Settings

    name = setting_name(setting, options)
    value = options.get(setting) if name.startswith("--") else os.environ.get(name)
    kind = str(Settings.model_fields[setting].annotation)
    hidden = is_secret(setting) or any(part in kind for part in ("SecretStr", "tuple[", "dict[")) or "://" in str(value)
    return name if value is None or hidden else f"{name}{' ' if name[0] == '-' else '='}{shorten(str(value))}"


def _sentence(message: str) -> str:
    """Return a message of pydantic's about a setting, which is no input of a form."""
    return message.replace("Value error, ", "").replace("Input should be", "must be")
