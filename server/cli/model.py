"""`tutti model check` and `tutti export`: what a model is and whether it is served as it should be; ours for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from server.cli.options import EXIT_FAILED, DeviceOption, JsonOption, PrecisionOption, SettingsCommand, fail

model = typer.Typer(name="model", help="Acoustic models: ours, and published ones in ONNX form.", no_args_is_help=True)


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


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write model.onnx and tokens.txt in.")],
    *,
    model: Annotated[Path | None, typer.Option(help="A .safetensors checkpoint. Default: the shipped model.")] = None,
) -> None:
    """Write a model of ours in the form that sherpa-onnx reads, as a streaming NeMo CTC model."""
    from model import checkpoint
    from model.errors import ModelError, install_hint
    from model.export_onnx import export as write

    try:
        path = write(checkpoint.load(model or checkpoint.SHIPPED)[0], directory)
    except ModuleNotFoundError as error:
        fail(f"export needs the optional package {error.name}: {install_hint('onnx')}")
    except (ModelError, OSError) as error:
        fail(error)
    typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB, and {path.with_name('tokens.txt')}")
