"""Errors of the command line: one line each on standard error, `tutti: WHAT: what is wrong; what to do`.

WHAT is the option with its value, the `TUTTI_…` variable with its value, or an argument; values of keys are never
shown. Wrong usage exits with status 2, a failed command with 1. This module does not depend on any command.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
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
PLAIN = (  # rewrites of pydantic's, typer's and click's messages
    (r"Value error, ", ""),
    (r"Input should be a valid integer.*", "must be a whole number"),
    (r"Input should be a valid boolean.*", "must be true or false"),
    (r"Input should be (a valid number.*|a finite number)", "must be a finite number"),
    (r"(Input should be|should be) greater than or equal to ", "must be at least "),
    (r"(Input should be|should be) less than or equal to ", "must be at most "),
    (r"Input should be a valid dictionary", "must be a JSON object"),
    (r"Input should be a valid tuple", "must be a JSON array"),
    (r"Input should be ", "must be "),
    (r"('.*'|\S+) is not one of ", "must be one of "),
    (r"('.*'|\S+) is not a valid (int|integer)\b.*", "must be a whole number"),
    (r"('.*'|\S+) is not a valid float\b.*", "must be a finite number"),
)


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


def plainly(message: str) -> str:
    """Return a message of pydantic, typer or click as the end of a sentence about a value."""
    for pattern, replacement in PLAIN:
        message = re.sub(f"^{pattern}", replacement, message)
    return message.rstrip(".")


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
        found = [_of_file(each) for each in error.exceptions]
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
    """Return a usage error as one line."""
    parameter, context = getattr(error, "param", None), error.ctx
    if parameter is not None and type(error).__name__ == "MissingParameter":
        return f"{name_of(parameter)}: is missing; {_help_of(context)}"
    if parameter is not None and context is not None:
        return f"{_with_value(parameter, context)}: {plainly(error.message)}"
    option = getattr(error, "option_name", None)
    if option is not None:
        close = getattr(error, "possibilities", None)
        advice = f"did you mean {' or '.join(sorted(close))}?" if close else _help_of(context)
        unknown = error.message.startswith("No such option")
        problem = "no such option" if unknown else re.sub(r"^Option '[^']*' ", "", error.message).rstrip(".")
        return f"{option}: {problem}; {advice}"
    if found := re.fullmatch(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", error.message):
        return f"{shorten(found[1])}: unexpected argument; {_repeated(context)}{_help_of(context)}"
    if found := re.match(r"No such command '(.*?)'\.?\s*(?:Did you mean (.*)\?)?", error.message):
        advice = f"did you mean {found[2].rstrip('?')}?" if found[2] else _help_of(context)
        return f"{shorten(found[1])}: no such command; {advice}"
    return error.message


def _repeated(context: Any) -> str:
    """Return advice to repeat an option that was given: of several values after it, it takes the first alone."""
    given = {} if context is None else context.meta.get(GIVEN, {})
    options = [one for one in (context.command.params if context else ()) if getattr(one, "multiple", False)]
    names = [name_of(one) for one in options if given.get(one.name)]
    return f"each value needs its own {' or '.join(names)}; " if names else ""


def _help_of(context: Any) -> str:
    return f"see `{context.command_path} --help`" if context is not None else "see `tutti --help`"


def name_of(parameter: Any) -> str:
    """Return the name of an option or an argument as shown in the help."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name).upper()


def _with_value(parameter: Any, context: Any) -> str:
    """Return an option's name and value, or the name and value of the variable that set it."""
    source = context.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return f"{parameter.envvar}={'…' if is_secret(parameter.name) else shorten(os.environ[parameter.envvar])}"
    given = context.meta.get(GIVEN, {}).get(parameter.name)
    if given is None or is_secret(parameter.name):
        return name_of(parameter)
    text = " ".join(given) if isinstance(given, (list, tuple)) else str(given)
    if parameter.name == "url":  # its query or user part may be secret
        text = re.sub(r"\?.*", "?…", re.sub(r"//[^/@]*@", "//…@", text))
    return f"{name_of(parameter)} {shorten(text)}"


GIVEN = "tutti.given"
"""Key in a context's `meta`: the values as typed on the command line, by parameter."""


def check_given(command: Any, context: Any, arguments: list[str]) -> None:
    """Store the values as typed, and reject empty ones. Raises: UsageError.

    A script with an unset variable passes an empty value; as a path it would mean the working directory.
    """
    given, _, _ = command.make_parser(context).parse_args(args=list(arguments))
    context.meta[GIVEN] = given
    for parameter in command.get_params(context):
        value = given.get(parameter.name)
        texts = value if isinstance(value, (list, tuple)) else [value]
        if "" in texts and parameter.default != "":
            raise typer.BadParameter("must not be empty; leave it out", ctx=context, param=parameter)


def check_numbers(command: Any, context: Any) -> None:
    """Reject infinities and NaN in options. Raises: UsageError."""
    for parameter in command.get_params(context):
        value = context.params.get(parameter.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise typer.BadParameter("must be a finite number", ctx=context, param=parameter)


def is_secret(name: str) -> bool:
    """Whether values of an option or setting are secret and must not be shown."""
    return re.search(r"key|token|secret", name) is not None and not name.endswith(("_file", "per_key", "by_key"))


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
    head, colon, rest = problem.partition(": ")
    if not (colon and re.fullmatch(r"[a-z_]+", head)):
        return problem
    from server.settings import Settings

    return f"{setting_name(head, options)}: {rest}" if head in Settings.model_fields else problem


def problems_of(error: ValidationError, options: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each invalid setting; `options` are the given ones."""
    found: dict[str, list[tuple[str, str]]] = {}
    for problem in error.errors():
        at = problem["loc"] or problem.get("ctx", {}).get("settings", ())
        setting = str(at[0]) if at else ""
        inner = ".".join(str(part) for part in at[1:] if isinstance(part, int) or str(part).isidentifier())
        found.setdefault(setting, []).append((inner, plainly(problem["msg"])))
    return [_problem(setting, messages, options) for setting, messages in found.items()]


def _problem(setting: str, messages: list[tuple[str, str]], options: Mapping[str, Any]) -> str:
    if not setting:
        return "; ".join(problem for _, problem in messages)
    alternatives = [problem for _, problem in messages]
    if len(alternatives) > 1 and all(text.startswith("must be ") for text in alternatives):
        alternatives = ["must be " + _either(text.removeprefix("must be ") for text in alternatives)]
    first = messages[0][0]
    inner = f"{first}: " if first and isinstance(first, str) and "." in first else ""
    return f"{_setting_with_value(setting, options)}: {inner}{alternatives[0]}"


def _either(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _setting_with_value(setting: str, options: Mapping[str, Any]) -> str:
    """Return the option or variable of a setting, with its value unless it may be secret."""
    from server.settings import Settings

    name = setting_name(setting, options)
    value = options.get(setting) if name.startswith("--") else os.environ.get(name)
    kind = str(Settings.model_fields[setting].annotation)
    hidden = is_secret(setting) or any(part in kind for part in ("SecretStr", "tuple[", "dict[")) or "://" in str(value)
    if value is None or hidden:
        return name
    text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"{name}{' ' if name.startswith('--') else '='}{shorten(text)}"
