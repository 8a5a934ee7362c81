"""`tutti model` and `tutti export`: what a model is; which ones a running server has loaded; ours for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from server.cli.errors import EXIT_FAILED, fail
from server.cli.operate import HERE, AdminKeyOption, AdminUrlOption, ask_admin
from server.cli.options import DeviceOption, JsonOption, PrecisionOption, SettingsCommand

model = typer.Typer(name="model", help="Acoustic models: ours, and published ones in ONNX form.", no_args_is_help=True)


LOADING_S = 120.0  # a large model is read from a slow disk
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As `tutti model list` says it.")]


@model.callback()
def _group() -> None: ...


@model.command(cls=SettingsCommand)
def check(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="A published model's folder or file, or a checkpoint. Default: the shipped model."
        ),
    ] = None,
    *,
    audio: Annotated[
        Path | None, typer.Option(help="Recognise this recording, and compare with sherpa-onnx where it is installed.")
    ] = None,
    device: DeviceOption,
    precision: PrecisionOption,
    as_json: JsonOption = False,
) -> None:
    """Say what a model is, whether batches change its results, how fast it is here, and what it recognises.

    Exit status 1 if it cannot be loaded, if symbols depend on the batch, or if sherpa-onnx writes other tokens.
    """
    from model.errors import ModelError
    from server.cli.options import settings_from
    from server.errors import Refused
    from server.tools.model_check import Asked
    from server.tools.model_check import check as examine
    from server.tools.model_check_report import lines

    try:
        document = examine(Asked(directory, audio, device, precision), settings_from({}))
    except (ModelError, Refused) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        for line in lines(document):
            typer.echo(line)
    raise typer.Exit(0 if document["ok"] else EXIT_FAILED)


@model.command(name="list", cls=SettingsCommand)
def list_(*, url: AdminUrlOption = HERE, admin_key: AdminKeyOption = None) -> None:
    """Say what each model of a running server is doing: loaded, loading, unloading, not loaded; and its streams."""
    for state in ask_admin(url, "GET", "models", admin_key, timeout_s=LOADING_S):
        _tell(state)


@model.command(cls=SettingsCommand)
def load(name: NameArgument, *, url: AdminUrlOption = HERE, admin_key: AdminKeyOption = None) -> None:
    """Have a running server load a model; streams of its others go on. Returns once it takes streams."""
    _tell(ask_admin(url, "POST", f"models/{quote(name, safe='')}/load", admin_key, timeout_s=LOADING_S))


@model.command(cls=SettingsCommand)
def unload(name: NameArgument, *, url: AdminUrlOption = HERE, admin_key: AdminKeyOption = None) -> None:
    """Have a running server unload a model: no new streams of it, and when the open ones have ended, no memory."""
    _tell(ask_admin(url, "POST", f"models/{quote(name, safe='')}/unload", admin_key, timeout_s=LOADING_S))


def _tell(state: dict[str, Any]) -> None:
    default = ", the default" if state["default"] else ""
    typer.echo(f"{state['name']}: {state['phase']}{default}, {state['streams']} streams")


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write model.onnx and tokens.txt in.")],
    *,
    model: Annotated[
        Path | None,
        typer.Option(help="A .safetensors checkpoint, or a shipped one's name. Default: the shipped model."),
    ] = None,
) -> None:
    """Write a model of ours in the form that sherpa-onnx reads, as a streaming NeMo CTC model."""
    from model import checkpoint
    from model.errors import ModelError, require

    for package in ("torch", "onnx"):
        require(package, "onnx", "tutti export")
    from model.export_onnx import export as write
    from model.torch_network.checkpoint import load_network

    try:
        path = write(load_network(checkpoint.named(model) if model else checkpoint.SHIPPED)[0], directory)
    except (ModelError, OSError) as error:
        fail(error)
    typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB, and {path.with_name('tokens.txt')}")
