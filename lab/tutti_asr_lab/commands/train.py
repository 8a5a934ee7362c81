"""`tutti train` and `tutti synthesize`: train a model from recordings; make recordings with speech synthesizers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import EXIT_INTERRUPTED, fail, refuse_ignored
from server.cli.options import DeviceOption


def train(
    context: typer.Context,
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings as JSON lines; repeatable.")],
    out: Annotated[Path, typer.Option(help="Checkpoint to write, NAME.safetensors.")],
    recipe: Annotated[
        Path | None,
        typer.Option(help="Training recipe, JSON. Default: small.json of tutti_asr_lab/training/acoustic/recipes."),
    ] = None,
    init: Annotated[Path | None, typer.Option(help="Checkpoint to start from, or the name of a shipped one.")] = None,
    teacher: Annotated[
        list[Path] | None, typer.Option(help="Checkpoint or shipped model to distill from; repeatable.")
    ] = None,
    lexicon: Annotated[
        Path | None, typer.Option(help="Pronunciation lexicon; required for languages other than English and Mandarin.")
    ] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="Held-out recordings; repeatable.")] = None,
    noise: Annotated[list[Path] | None, typer.Option(help="Noise and room impulse responses; repeatable.")] = None,
    cache: Annotated[Path, typer.Option(help="Folder in which decoded audio is cached.")] = Path("build/audio"),
    device: DeviceOption,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Processes of one thread each: 1, 2, 4, …; all give the same model. Default: one per core.", min=1
        ),
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Give each process cores of its own (only CPUs).")] = False,
    validate_every: Annotated[int, typer.Option(help="Updates between validations.", min=1)] = 500,
    save_every: Annotated[int, typer.Option(help="Updates between snapshots.", min=1)] = 200,
    save_minutes: Annotated[float, typer.Option(help="Maximum minutes between snapshots.", min=0)] = 10,
) -> None:
    """Train a model. The same command resumes an interrupted run from its last snapshot.

    Can be started by torchrun, on any number of machines.
    """
    from model.checkpoint import named
    from model.errors import ModelError
    from model.machine.runtime import keep_kernels
    from tutti_asr_lab.training.acoustic.parallel.launch import Place
    from tutti_asr_lab.training.acoustic.recipe import RECIPES, read_recipe
    from tutti_asr_lab.training.acoustic.run import Every, Places, train

    keep_kernels()
    teachers = [named(each) for each in teacher or []]
    place = Place.of(os.environ)
    refuse_ignored(context, ["processes"] if place else [], "cannot be combined with torchrun, which starts them")
    places = Places(manifest, validation or [], noise or [], out, cache, init and named(init), lexicon, teachers)
    try:
        config, chosen = read_recipe(recipe or RECIPES / "small.json")
        path = train(
            config,
            chosen,
            places,
            processes=processes,
            place=place,
            device=device,
            every=Every(validate_every, save_every, save_minutes * 60),
            pin=pin,
            announce=typer.echo,
        )
    except ModelError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"wrote {path}")


def synthesize(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="Folder for the recordings and their manifest, synthetic.jsonl.")],
    *,
    hours: Annotated[float, typer.Option(help="Hours of speech.", min=0.001)] = 7.0,
    seed: Annotated[int, typer.Option(help="Random seed for texts and voices.")] = 1,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    dev: Annotated[bool, typer.Option("--dev", help="Use sentences of the held-out split.")] = False,
    mandarin: Annotated[
        Path | None,
        typer.Option(help="Mandarin instead of English: texts from `python -m tutti_asr_lab.training.mandarin.texts`."),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Texts to speak, one sentence a line, in the language of --voice.")
    ] = None,
    voice: Annotated[str, typer.Option(help="espeak-ng voice for --texts, such as es.")] = "en-us",
    neural: Annotated[
        bool,
        typer.Option(
            "--neural", help="Use Kokoro voices, English or Mandarin; voices.sh of the training recipes installs them."
        ),
    ] = False,
) -> None:
    """Make synthetic speech for training in many voices, with espeak-ng and flite or a neural synthesizer."""
    from model.errors import ModelError
    from tutti_asr_lab.training.synthesis.sentences import Split
    from tutti_asr_lab.training.synthesis.synthesize import Texts
    from tutti_asr_lab.training.synthesis.synthesize import synthesize as make

    if texts is None or neural:
        refuse_ignored(context, ["voice"], "needs --texts, and cannot be combined with --neural")
    if texts is not None:
        refuse_ignored(context, ["mandarin"], "cannot be combined with --texts; leave one of them out")
    if texts is not None or mandarin is not None:
        refuse_ignored(context, ["dev"], "cannot be combined with --texts or --mandarin: they have no held-out split")
    try:
        given = None if texts is None else Texts(texts, voice)
        split: Split = "dev" if dev else "train"
        typer.echo(make(out, hours, seed, jobs, split=split, mandarin=mandarin, texts=given, neural=neural))
    except ModelError as error:
        fail(error)
    except KeyboardInterrupt:
        typer.echo("interrupted; the finished recordings are in the manifest", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
