"""Command lines of `tutti` and `python -m`, read by the real parsers; nothing is run."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import typer
import typer.main
from pydantic import ValidationError

from server.cli import app
from server.cli.errors import UsageError
from server.configuration.variables import check_names, is_other
from server.settings import Settings
from tests.support.documents.blocks import ROOT
from tests.support.needs import missing

OTHER_MODULES = {"build", "pip", "timeit", "venv"}  # of others; pytest's files are checked
CONTAINERS = {"docker", "torchrun"}  # programs that run a command which follows their own options
TAKE_SETTINGS = {"serve", "doctor"}  # whose options are the settings of that name
ASSIGNED = re.compile(r"(\w+)=")
built = cache(typer.main.get_command)  # the parser of a program, made once
PLACEHOLDER = re.compile(r"\b[A-Z]+$|…|[a-z]\|[a-z]")  # NAME, HOST:PORT, or one of several words


class Unparsed(Exception):
    """A command line that its program refuses."""


def check(words: list[str], *, whole: bool = True) -> None:
    """Read one simple command. Not `whole`: arguments may be missing, as where a text names a command.

    Raises: Unparsed. Other programs than ours are not read.
    """
    for word in words:  # also those of `export` and of `docker run -e`
        if found := ASSIGNED.match(word):
            _check_variable(found[1])
    words = list(dropwhile(ASSIGNED.match, words))
    if not words:
        return
    program = Path(words[0]).name
    if program in CONTAINERS:
        words = next((words[at:] for at, word in enumerate(words) if Path(word).name == "tutti" and at), [])
        program = Path(words[0]).name if words else ""
    if program == "tutti":
        check_tutti(words[1:], whole=whole)
    elif program in ("python", "python3") and words[1:2] == ["-m"]:
        check_module(words[2], words[3:], whole=whole)
    elif program in ("python", "python3") and len(words) > 1 and words[1].endswith(".py"):
        check_module(words[1].removesuffix(".py").replace("/", "."), words[2:], whole=whole)


def _check_variable(name: str) -> None:
    if name.startswith("TUTTI_") and not is_other(name):
        try:
            check_names([name], Settings.model_fields)
        except ValueError as error:
            raise Unparsed(str(error)) from error


def check_tutti(words: list[str], *, whole: bool) -> None:
    """Read the arguments of `tutti`. Raises: Unparsed."""
    check_app("tutti", app, words, whole=whole)


def check_app(name: str, program: typer.Typer, words: list[str], *, whole: bool) -> None:
    """Read the arguments of a program with commands. Raises: Unparsed."""
    command: Any = built(program)
    words, names = list(words), [name]
    while (known := getattr(command, "commands", None)) is not None:
        if not words and not whole:
            return
        if not words or words[0] not in known:
            raise Unparsed(f"{' '.join(names)} has no command {' '.join(words[:1])!r}; it has {', '.join(known)}")
        names.append(words.pop(0))
        command = known[names[-1]]
    if words or whole:
        read(command, words, whole=whole)


def check_module(name: str, words: list[str], *, whole: bool) -> None:
    """Read the arguments of a module. Raises: Unparsed."""
    if name == "pytest":
        absent = [word for word in words if not word.startswith("-") and not (ROOT / word).exists()]
        if absent:
            raise Unparsed(f"no such tests: {', '.join(absent)}")
        return
    if name in OTHER_MODULES:
        return
    module = imported(name)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    if runs := re.search(r"^ +typer\.run\((\w+)\)$", source, re.MULTILINE):
        read(command_of(getattr(module, runs[1])), words, whole=whole)
    elif re.search(r"^    app\(\)$", source, re.MULTILINE):
        check_app(name, module.app, words, whole=whole)
    elif "ArgumentParser(" in source:
        unknown = [word for word in words if word.startswith("--") and f'"{word.partition("=")[0]}"' not in source]
        if unknown:
            raise Unparsed(f"unrecognized arguments: {' '.join(unknown)}")
    elif "examples.serving" in source:
        read_example(module, words, whole=whole)
    elif words and "sys.argv" not in source:
        raise Unparsed(f"{name} takes no arguments")


def imported(name: str) -> Any:
    """Import a module, or `__main__` of a package; skip the test where an optional package is missing."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Unparsed(f"no module {name}")
    try:
        return importlib.import_module(f"{name}.__main__" if found.submodule_search_locations else name)
    except ModuleNotFoundError as error:
        if error.name is None or (ROOT / error.name.partition(".")[0]).exists():
            raise Unparsed(str(error)) from error
        missing(f"{error.name} not installed")
        raise


def command_of(function: Callable[..., Any]) -> Any:
    """Return the command that `typer.run` makes of a function."""
    made = typer.Typer(add_completion=False)
    made.command()(function)
    return typer.main.get_command(made)


def read_example(module: Any, words: list[str], *, whole: bool) -> None:
    """Read the arguments of an application of `examples`, whose command is made by `examples.serving`."""
    made: list[Callable[..., Any]] = []
    with mock.patch.object(typer, "run", made.append):
        module.run(module.application, module.client)
    read(command_of(made[0]), words, whole=whole)


def read(command: Any, words: list[str], *, whole: bool) -> None:
    """Read arguments by a command of typer. Raises: Unparsed."""
    command = deepcopy(command)
    options = [one for one in command.params if one.param_type_name == "option" and not one.is_flag]
    valued = {name: option for option in options for name in option.opts}
    if not whole:
        for parameter in command.params:
            parameter.required = False
        words = words[:-1] if words and words[-1] in valued else words  # an option whose value the text leaves out
        words = [word for before, word in zip(["", *words], words, strict=False) if word != "…" or before in valued]
    words = [*words[:1], *(_example(valued.get(option), value) for option, value in pairwise(words))]
    try:
        context = command.make_context(command.name, words)
        if command.name in TAKE_SETTINGS:
            _check_settings(context)
    except ValidationError as error:
        raise Unparsed(str(error)) from error
    except UsageError as error:
        raise Unparsed(error.format_message()) from error
    except typer.Exit as error:
        raise Unparsed(f"exits with {error.exit_code}") from error


def _example(parameter: Any, value: str) -> str:
    """Return the value of an option, or one that it accepts if a placeholder stands there."""
    if parameter is None or not PLACEHOLDER.search(value):
        return value
    parameter.callback = None
    return "1" if value == "N" else value.partition("|")[0]


def _check_settings(context: Any) -> None:
    """Check the values that the command line gives to settings. Raises: ValidationError."""
    given = {
        name: value
        for name, value in context.params.items()
        if name in Settings.model_fields and value not in (None, [], ())
    }
    Settings(**given)


def repository_paths(words: list[str]) -> Iterator[str]:
    """Yield words that name files of the repository, or `--option=FILE` with such a value."""
    for word in words:
        name = word.rpartition("=")[2]
        if re.match(r"(?:deploy|docs|model|tests|clients|server|loadtest)/[\w./@-]+$", name):
            yield name
