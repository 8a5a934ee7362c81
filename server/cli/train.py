"""`tutti train` and `tutti synthesize`: a model from recordings, and recordings from speech synthesizers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import EXIT_INTERRUPTED, fail
from server.cli.options import DeviceOption


def train(
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings, JSON lines; repeatable.")],
    out: Annotated[Path, typer.Option(help="The checkpoint to write, NAME.safetensors.")],
    recipe: Annotated[
        Path | None, typer.Option(help="JSON. Default: model/training/acoustic/recipes/small.json.")
    ] = None,
    init: Annotated[Path | None, typer.Option(help="A checkpoint to start from, or a shipped one's name.")] = None,
    teacher: Annotated[
        list[Path] | None, typer.Option(help="A checkpoint or shipped model to learn from (distillation); repeatable.")
    ] = None,
    lexicon: Annotated[
        Path | None, typer.Option(help="Pronunciations, which languages other than English and Mandarin need.")
    ] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="Held-out recordings; repeatable.")] = None,
    noise: Annotated[list[Path] | None, typer.Option(help="Noise and room responses; repeatable.")] = None,
    cache: Annotated[Path, typer.Option(help="Where decoded audio is kept between runs.")] = Path("build/audio"),
    device: DeviceOption,
    processes: Annotated[
        int | None,
        typer.Option(
            help="1, 2, 4, …, of one thread each; any number gives the same model. Default: a core each.", min=1
        ),
    ] = None,
    validate_every: Annotated[int, typer.Option(help="Updates between validations.", min=1)] = 500,
    save_every: Annotated[int, typer.Option(help="Updates between snapshots of the run.", min=1)] = 200,
    save_minutes: Annotated[float, typer.Option(help="Minutes between snapshots, where updates are slow.", min=0)] = 10,
) -> None:
    """Train a model. An interrupted run goes on from its last snapshot when the same command is given again.

    Under torchrun it is one of the processes that torchrun starts, on any number of machines.
    """
    from model.checkpoint import named
    from model.errors import ModelError
    from model.machine.runtime import keep_kernels
    from model.training.acoustic.parallel.launch import Place
    from model.training.acoustic.recipe import RECIPES, read_recipe
    from model.training.acoustic.run import Every, Places, train

    keep_kernels()
    teachers = [named(each) for each in teacher or []]
    places = Places(manifest, validation or [], noise or [], out, cache, init and named(init), lexicon, teachers)
    try:
        config, chosen = read_recipe(recipe or RECIPES / "small.json")
        path = train(
            config,
            chosen,
            places,
            processes=processes,
            place=Place.of(os.environ),
            device=device,
            every=Every(validate_every, save_every, save_minutes * 60),
            announce=typer.echo,
        )
    except ModelError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"wrote {path}")


def synthesize(
    out: Annotated[Path, typer.Argument(help="Folder for the recordings and their manifest, synthetic.jsonl.")],
    *,
    hours: Annotated[float, typer.Option(help="Hours of speech.", min=0)] = 7.0,
    seed: Annotated[int, typer.Option(help="Decides texts and voices.")] = 1,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    dev: Annotated[bool, typer.Option("--dev", help="Sentences of the held-out split.")] = False,
    mandarin: Annotated[
        Path | None,
        typer.Option(help="Mandarin in place of English: texts of `python -m model.training.mandarin.texts`."),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Say these, a sentence a line, in the language of --voice.")
    ] = None,
    voice: Annotated[str, typer.Option(help="espeak-ng's voice for --texts, such as es.")] = "en-us",
    neural: Annotated[
        bool,
        typer.Option(
            "--neural", help="Kokoro's voices, English or Mandarin; model/training/recipes/voices.sh installs them."
        ),
    ] = False,
) -> None:
    """Make synthetic speech for training with espeak-ng and flite, or neural voices; in many voices."""
    from model.errors import ModelError
    from model.training.synthesis.sentences import Split
    from model.training.synthesis.synthesize import Texts
    from model.training.synthesis.synthesize import synthesize as make

    try:
        said = None if texts is None else Texts(texts, voice)
        split: Split = "dev" if dev else "train"
        typer.echo(make(out, hours, seed, jobs, split=split, mandarin=mandarin, texts=said, neural=neural))
    except ModelError as error:
        fail(error)
    except KeyboardInterrupt:
        typer.echo("interrupted; the finished rows are in the manifest", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
