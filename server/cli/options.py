"""Options that several commands share, settings made of options, exit codes, and the end of a command that failed.

Defaults in help texts are looked up in the settings when help is shown; nothing heavy is imported before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from server.settings import Settings

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
DEVICES = "auto, cpu or cuda."
PRECISIONS = "auto (the fastest here), int8 (CPU; same text on every processor), bf16, fp32 or fp16 (GPU)."


class Part(StrEnum):
    """Recordings by speaker: `model/evaluation/parts`."""

    A = "A"
    B = "B"
    ALL = "all"


def default_of(setting: str) -> Callable[[], Any]:
    """Return a function that looks up the default of a setting: the `default_factory` of an option."""

    def look_up() -> Any:
        from server.settings import Settings

        return Settings.model_fields[setting].default

    return look_up


class SettingsCommand(TyperCommand):
    """A command whose help and completion show defaults of settings, in place of `{default}` and of `default_of`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command."""
        self._look_up_defaults()
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a word; some shells show the options' help beside it."""
        self._look_up_defaults()
        return super().shell_complete(ctx, incomplete)

    def _look_up_defaults(self) -> None:
        for option in self.params:
            if callable(option.default):
                option.default = option.default()
            text = getattr(option, "help", None) or ""
            if "{default}" in text:
                value = default_of(str(option.name))()
                shown = f"{value:g}" if isinstance(value, float) else str(value)
                option.help = text.replace("{default}", shown)  # type: ignore[attr-defined]


ModelOption = Annotated[
    Path | None,
    typer.Option(help="A .safetensors checkpoint, or the name of a shipped one. Default: the shipped model."),
]
LanguageOption = Annotated[
    str | None,
    typer.Option(help="What is spoken: en or zh; with --url, what the server has. Default: en."),
]
GrammarOption = Annotated[str | None, typer.Option(help="The one kind of phrase that is said: digits. Default: none.")]
GrammarsOption = Annotated[
    Path | None, typer.Option(help="Folder of own grammars, LANGUAGE-NAME.arpa, besides digits. Default: none.")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A .safetensors checkpoint, or small, medium or mandarin; or several as NAME=PATH, the default first. "
        "Default: English, and Mandarin on demand."
    ),
]
DeviceOption = Annotated[str, typer.Option(help=DEVICES, default_factory=default_of("device"))]
DeviceSetting = Annotated[str | None, typer.Option(help=f"{DEVICES} Default: {{default}}.")]
PrecisionOption = Annotated[str, typer.Option(help=PRECISIONS, default_factory=default_of("precision"))]
ThreadsOption = Annotated[
    int, typer.Option(help="Compute threads. Default: all cores but one.", default_factory=default_of("threads"))
]
DecoderOption = Annotated[
    str | None, typer.Option(help="auto (beam where there is a language model), greedy or beam. Default: {default}.")
]
BeamsOption = Annotated[
    int | None, typer.Option(help="Hypotheses that beam search keeps, 1 to 1,024. Default: {default}.")
]
SecondBeamsOption = Annotated[
    str | None,
    typer.Option(help="Hypotheses of a second decode of each ended segment, 1 to 1,024; or off. Default: {default}."),
]
SecondLmOption = Annotated[
    Path | None, typer.Option(help="Language model of the second decode. Default: that of the first.")
]
LmOption = Annotated[
    str | None,
    typer.Option(help="Language model of the beam search: .arpa, .arpa.gz, .lm; or off. Default: the shipped one."),
]
FinalsOption = Annotated[
    str | None,
    typer.Option(help="fast, or accurate: ended segments are read again by another model. Default: {default}."),
]
UrlOption = Annotated[str | None, typer.Option(help="A running server, e.g. ws://127.0.0.1:8080.")]
KeyOption = Annotated[str | None, typer.Option(help="API key of that server.", envvar="TUTTI_API_KEY")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document as the last line.")]
PartOption = Annotated[
    Part, typer.Option(help="Half of the speakers of each source: A, which `tutti lm tune` uses, or B, or all.")
]
ManifestOption = Annotated[list[Path], typer.Option(help="JSON lines with audio and text; repeatable.")]


def settings_from(options: Mapping[str, Any]) -> Settings:
    """Settings from the options that were given, `TUTTI_…` variables and defaults.

    A bad value is named on standard error and ends the command with the exit status of wrong usage.
    """
    from pydantic import ValidationError

    from server.settings import Settings
    from server.settings_variables import check_names

    try:
        check_names(os.environ, Settings.model_fields)
    except ValueError as error:
        typer.echo(f"tutti: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    try:
        return Settings(**{name: value for name, value in options.items() if value not in (None, [])})
    except ValidationError as error:
        for problem in error.errors():
            option = f"--{str(problem['loc'][0]).replace('_', '-')}: " if problem["loc"] else ""
            typer.echo(option + problem["msg"].removeprefix("Value error, "), err=True)
        raise typer.Exit(EXIT_USAGE) from None


def model_for(language: str | None, model: Path | None) -> Path | None:
    """The model that was named, or the shipped one of a language; None for the default. Raises: typer.Exit."""
    if language is None or model is not None:
        return model
    from model.checkpoint import shipped_for
    from model.errors import ModelError

    try:
        return shipped_for(language)
    except ModelError as error:
        fail(error)


def fail(error: Exception | str) -> NoReturn:
    """End the command with its error in one line."""
    typer.echo(f"tutti: {error}", err=True)
    raise typer.Exit(EXIT_FAILED) from (error if isinstance(error, Exception) else None)
