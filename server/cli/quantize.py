"""`tutti quantize`: a checkpoint of 8-bit integers from one of floats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import EXIT_INTERRUPTED, fail


def quantize(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint to quantise, NAME.safetensors.")],
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings to calibrate on, JSON lines; repeatable.")],
    out: Annotated[Path, typer.Option(help="The checkpoint to write, NAME.safetensors.")],
    validation: Annotated[
        list[Path] | None, typer.Option(help="Held-out recordings for error rates before and after; repeatable.")
    ] = None,
    draws: Annotated[
        int,
        typer.Option(help="Draws of the recordings to calibrate on; the one with the fewest errors is kept.", min=1),
    ] = 1,
    fine_tune: Annotated[int, typer.Option(help="Updates that fit the integers to the floats' outputs.", min=0)] = 0,
    noise: Annotated[
        list[Path] | None, typer.Option(help="Noise and room responses for fine-tuning; repeatable.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where fine-tuning keeps decoded audio.")] = Path("build/audio"),
    seed: Annotated[int, typer.Option(help="Decides which recordings are heard, and how they are augmented.")] = 1,
) -> None:
    """Make a checkpoint of 8-bit integers, for --precision int8, and compare its error rates with the floats'."""
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
        typer.echo("interrupted; nothing is written", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")
