"""`tutti train` and `tutti synthesize`: a model from recordings, and recordings from speech synthesizers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server.cli.options import EXIT_INTERRUPTED, DeviceOption, fail


def train(
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings, JSON lines; repeatable.")],
    out: Annotated[Path, typer.Option(help="The checkpoint to write, NAME.safetensors.")],
    recipe: Annotated[Path | None, typer.Option(help="JSON. Default: model/training/recipes/small-1.json.")] = None,
    init: Annotated[Path | None, typer.Option(help="A checkpoint to start from.")] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="Held-out recordings; repeatable.")] = None,
    noise: Annotated[list[Path] | None, typer.Option(help="Noise and room responses; repeatable.")] = None,
    cache: Annotated[Path, typer.Option(help="Where decoded audio is kept between runs.")] = Path("build/audio"),
    device: DeviceOption,
    validate_every: Annotated[int, typer.Option(help="Updates between validations.", min=1)] = 500,
) -> None:
    """Train a model. An interrupted run goes on where it stopped when the same command is given again."""
    from model.errors import ModelError
    from model.runtime import keep_kernels
    from model.training.recipe import RECIPES, read_recipe
    from model.training.run import Places, train

    keep_kernels()
    places = Places(manifest, validation or [], noise or [], out, cache, init)
    try:
        config, chosen = read_recipe(recipe or RECIPES / "small-1.json")
        path = train(config, chosen, places, device=device, validate_every=validate_every, announce=typer.echo)
    except ModelError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"wrote {path}")


def synthesize(
    out: Annotated[Path, typer.Argument(help="Folder for the recordings and their manifest, synthetic.jsonl.")],
    *,
    hours: Annotated[float, typer.Option(help="Hours of speech.")] = 7.0,
    seed: Annotated[int, typer.Option(help="Decides texts and voices.")] = 1,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    dev: Annotated[bool, typer.Option("--dev", help="Sentences of the held-out split.")] = False,
) -> None:
    """Make synthetic speech for training with espeak-ng and flite, in many voices."""
    from model.errors import ModelError
    from model.synthesis.synthesize import synthesize as make

    try:
        typer.echo(make(out, hours, seed, jobs, "dev" if dev else "train"))
    except ModelError as error:
        fail(error)
    except KeyboardInterrupt:
        typer.echo("interrupted; the finished rows are in the manifest", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
