"""`tutti export`: write a checkpoint as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.errors import ModelError, require
from server.cli.errors import fail


def export(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to which model.onnx and tokens.txt are written.")
    ],
    *,
    model: Annotated[
        Path | None,
        typer.Option(help="A .safetensors checkpoint, or the name of a shipped one. Default: gru, in floats."),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Write model.int8.onnx too, in dynamic 8-bit integers.")] = False,
) -> None:
    """Export a checkpoint to ONNX for sherpa-onnx, as a streaming NeMo CTC model."""
    for package in ("torch", "onnx"):
        require(package, "onnx", "tutti export")
    from model import checkpoint
    from model.torch_network.checkpoint import load_network
    from tutti_asr_lab import export_onnx

    try:
        path = export_onnx.export(load_network(checkpoint.named(model) if model else checkpoint.GRU)[0], directory)
        if int8:
            export_onnx.quantize(path)
    except (ModelError, OSError) as error:
        fail(error)
    typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB, and {path.with_name('tokens.txt')}")
