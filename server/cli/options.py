"""Options shared by commands, the command class, and settings built from options.

Defaults in help texts are looked up in the settings when help is shown, so that importing this module is cheap.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from typer.core import TyperCommand

from server.cli.errors import complain, fail, problems_of, refuse
from server.configuration.variables import OPTIONS, PREFIX, check_names, is_other

if TYPE_CHECKING:
    from server.settings import Settings

Command = TypeVar("Command", bound=Callable[..., None])
DEVICES = "auto, cpu or cuda."
PRECISIONS = "auto (the fastest on this machine), int8 (CPU; same text on every processor), bf16, fp32 or fp16 (GPU)."


class Part(StrEnum):
    """Recordings by speaker: `model/evaluation/parts`."""

    A = "A"
    B = "B"
    ALL = "all"


class Normalize(StrEnum):
    """Normalization of texts before they are compared: `model/evaluation/normalization`."""

    NONE = "none"
    BASIC = "basic"
    ENGLISH = "english"


def default_of(setting: str) -> Callable[[], Any]:
    """Return a function that looks up the default of a setting: the `default_factory` of an option."""

    def look_up() -> Any:
        from server.settings import Settings

        return Settings.model_fields[setting].default

    return look_up


def one_of(*names: str) -> Callable[[str | None], str | None]:
    """Return a `callback` that accepts only these names, for options whose help text lists them."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise typer.BadParameter(f"must be one of {', '.join(names)}")
        return value

    return check


def printable(value: str | None) -> str | None:
    """Check that a key can be sent in a header; used as an option's `callback`."""
    if value is not None and not (value.isascii() and value.isprintable() and " " not in value):
        raise typer.BadParameter("must be printable ASCII without spaces")
    return value


def server_url(value: str | None) -> str | None:
    """Check the address of a server, or several with commas; used as an option's `callback`."""
    if value is None:
        return None
    from tutti_asr_client.address import listen_url
    from tutti_asr_client.errors import BadUrl

    try:
        for address in value.split(","):
            listen_url(address.strip(), {})
    except BadUrl as error:
        raise typer.BadParameter(re.sub(r"^address '.*?': ", "", str(error))) from None
    return value


def same_options_as(other: Callable[..., None]) -> Callable[[Command], Command]:
    """Give a command all options of another one, after its own; it receives their values by name."""

    def share(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        shared = inspect.signature(other, eval_str=True).parameters
        first = [
            parameter
            for name, parameter in own.parameters.items()
            if name not in shared and parameter.kind is not parameter.VAR_KEYWORD
        ]
        parameters = sorted([*first, *shared.values()], key=lambda parameter: parameter.kind)  # those by position first
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return share


class CheckedCommand(TyperCommand):
    """A command that fills in defaults of settings in its help and completion, for `{default}` and `default_of`.

    It rejects empty values, numbers that are not finite, and unknown `TUTTI_…` variables.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. Raises: UsageError.

        A script with an unset variable passes an empty value; as a path it would mean the working directory.
        """
        for option, value in pairwise(["an argument", *args]):
            if not value or (value.startswith("--") and value.endswith("=")):
                raise typer.BadParameter(f"{value[:-1] or option}: must not be empty; leave it out")
        rest = super().parse_args(ctx, args)
        parameter: Any
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter("must be a finite number", ctx=ctx, param=parameter)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        names = [name for name in os.environ if name.upper().startswith(PREFIX) and not is_other(name)]
        if names:
            from server.settings import Settings

            try:
                check_names(names, Settings.model_fields)
            except ValueError as error:
                refuse(error)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command, with defaults of settings filled in."""
        self._look_up_defaults()
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a word; some shells show the help of each option."""
        self._look_up_defaults()
        return super().shell_complete(ctx, incomplete)

    def _look_up_defaults(self) -> None:
        for option in self.params:
            if callable(option.default):
                option.default = option.default()
            text = getattr(option, "help", None) or ""
            if "{default}" in text:
                value = default_of(str(option.name))()
                option.help = text.replace("{default}", str(value))  # type: ignore[attr-defined]


class SettingsCommand(CheckedCommand):
    """A command with an option for each setting of `OPTIONS`; it gets the settings as the object of its context.

    The options are made from `server/settings.py` when they are needed, so that other commands start fast.
    """

    _params: list[Any]
    _has_settings = False

    @property
    def params(self) -> list[Any]:
        """Its own options, then those of settings."""
        if not self._has_settings:
            self._has_settings = True
            self._params += _options_of_settings()
        return self._params

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._params = own

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        options = {option.name: ctx.params.pop(option.name) for option in _options_of_settings()}
        ctx.obj = settings_from(options)
        return super().invoke(ctx)


@cache
def _options_of_settings() -> list[Any]:
    """Return the options, as typer makes them of a function's parameters."""
    from server.settings import Settings
    from server.tools.settings_page import meanings

    texts, parameters = meanings(), []
    for name in OPTIONS:
        default, of_setting = Settings.model_fields[name].default, Settings.model_fields[name].annotation
        flag, choices = of_setting is bool, [text for text in get_args(of_setting) if isinstance(text, str)]
        kind: Any = bool if flag else list[str] if name == "model" else str
        after = "" if flag or default is None else f" Default: {default}."
        help_ = f"{texts[name][1]}{after}"
        option = typer.Option(f"--{name.replace('_', '-')}", help=help_, metavar="|".join(choices) or None)
        annotation = Annotated[kind | None, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def options(**_: Any) -> None: ...

    options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command = typer.Typer(add_completion=False)
    command.command()(options)
    return [option for option in typer.main.get_command(command).params if option.name in OPTIONS]


ModelOption = Annotated[
    Path | None,
    typer.Option(help="A .safetensors checkpoint, or the name of a shipped one. Default: the shipped model."),
]
LanguageOption = Annotated[
    str | None, typer.Option(help="Spoken language: en or zh; with --url, any that the server offers. Default: en.")
]
GrammarOption = Annotated[
    str | None, typer.Option(help="Restrict recognition to one grammar: digits, alphanumeric. Default: none.")
]
GrammarsOption = Annotated[
    Path | None, typer.Option(help="Folder of additional grammars, LANGUAGE-NAME.arpa. Default: none.")
]
WrittenFormsOption = Annotated[
    Path | None,
    typer.Option(help="File of your own written forms: a phrase, a tab, its written form on each line. Default: none."),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        help=DEVICES,
        default_factory=default_of("device"),
        envvar="TUTTI_DEVICE",
        callback=one_of("auto", "cpu", "cuda"),
    ),
]
DeviceSetting = Annotated[str | None, typer.Option(help=f"{DEVICES} Default: {{default}}.")]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help=PRECISIONS,
        default_factory=default_of("precision"),
        envvar="TUTTI_PRECISION",
        callback=one_of("auto", "int8", "bf16", "fp32", "fp16"),
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        help="Compute threads, which divide a batch. Default: all cores but one; with a large model, all.",
        default_factory=default_of("threads"),
        envvar="TUTTI_THREADS",
        min=0,
        max=256,
    ),
]
DecoderOption = Annotated[
    str | None, typer.Option(help="auto (beam if there is a language model), greedy or beam. Default: {default}.")
]
BeamsOption = Annotated[
    int | None,
    typer.Option(help="Beam width: hypotheses kept per stream, 1 to 1,024. Default: 256, for GRUs 128, transducers 4."),
]
LmOption = Annotated[
    str | None,
    typer.Option(help="Language model for beam search: .arpa, .arpa.gz or .lm; or off. Default: the shipped one."),
]
FinalsOption = Annotated[
    str | None,
    typer.Option(
        help="fast; context: the network computes each finished segment once more, as a whole; or accurate: a larger "
        "network reads it, too. Default: accurate for recordings; context for live audio, and in tutti evaluate.",
        callback=one_of("fast", "context", "accurate"),
    ),
]
UrlOption = Annotated[str | None, typer.Option(help="Running server, e.g. ws://127.0.0.1:8080.", callback=server_url)]
KeyOption = Annotated[
    str | None, typer.Option(help="API key for the server.", envvar="TUTTI_API_KEY", callback=printable)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")]
PartOption = Annotated[
    Part, typer.Option(help="Which half of each source's speakers: A (used by `tutti lm tune`), B, or all.")
]
ManifestOption = Annotated[
    list[Path], typer.Option(help="Recordings as JSON lines with `audio` and `text`; repeatable.")
]


def settings_from(options: Mapping[str, Any]) -> Settings:
    """Return settings from the given options, `TUTTI_…` variables and defaults.

    Bad values end the command with exit status 2 and one line each, which names the option or variable.
    """
    from pydantic import ValidationError

    from server.settings import Settings

    unset: tuple[Any, ...] = (None, [], ())  # () is typer's empty list
    chosen = {name: value for name, value in options.items() if value not in unset}
    try:
        return Settings(**chosen)
    except ValidationError as error:
        *others, last = problems_of(error)
        for problem in others:
            complain(problem)
        refuse(last)


def announce_compilation() -> None:
    """Say on standard error that the first start compiles, and count the seconds on a terminal."""
    from model.ctc.search import kernel
    from model.machine.compiled import is_cached
    from model.machine.progress import show_compilation

    if not is_cached(kernel.advance_streams):
        complain("compiling for this processor, once for each installation; this takes about a minute")
        show_compilation()


def model_for(language: str | None, model: Path | None) -> Path | None:
    """Return the given model, or the shipped one of the language; None for the default. Raises: typer.Exit."""
    if language is None or model is not None:
        return model
    from model.checkpoint import shipped_for
    from model.errors import ModelError

    try:
        return shipped_for(language)
    except ModelError as error:
        fail(error)
