"""`tutti quantize`: convert a float checkpoint to 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import EXIT_INTERRUPTED, fail


def quantize(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint to quantize, NAME.safetensors.")],
    *,
    manifest: Annotated[
        list[Path], typer.Option(help="Training recordings for calibration, as JSON lines; repeatable.")
    ],
    out: Annotated[Path, typer.Option(help="Checkpoint to write, NAME.safetensors.")],
    validation: Annotated[
        list[Path] | None,
        typer.Option(help="Held-out recordings, to compare error rates before and after; repeatable."),
    ] = None,
    draws: Annotated[
        int,
        typer.Option(help="Random calibration sets to try; the one with the fewest errors is kept.", min=1),
    ] = 1,
    fine_tune: Annotated[
        int, typer.Option(help="Training updates that fit the 8-bit model to the float model's outputs.", min=0)
    ] = 0,
    noise: Annotated[
        list[Path] | None, typer.Option(help="Noise and room responses for fine-tuning; repeatable.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Folder in which fine-tuning caches decoded audio.")] = Path(
        "build/audio"
    ),
    seed: Annotated[int, typer.Option(help="Random seed for the choice of recordings and their augmentation.")] = 1,
) -> None:
    """Convert a checkpoint to 8-bit integers, for --precision int8, and compare error rates with the float model."""
    from model.errors import ModelError
    from model.machine.runtime import keep_kernels
    from model.training.quantization.run import Places, run

    keep_kernels()
    places = Places(checkpoint, manifest, out, validation or [], noise or [], cache)
    try:
        path = run(places, draws=draws, updates=fine_tune, seed=seed, announce=typer.echo)
    except ModelError as error:
        fail(error)
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing was written", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")
