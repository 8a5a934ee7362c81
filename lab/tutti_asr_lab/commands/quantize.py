"""`tutti quantize`: convert a float checkpoint, or a published model, to 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, fail, given_options, refuse_ignored


def quantize(
    context: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(help="Checkpoint, NAME.safetensors, or the folder of a published model.", metavar="MODEL")
    ],
    *,
    manifest: Annotated[
        list[Path] | None, typer.Option(help="Recordings with transcripts for calibration, as JSON lines; repeatable.")
    ] = None,
    audio: Annotated[
        list[Path] | None, typer.Option(help="Published models: a recording or a folder for calibration; repeatable.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Published models: write the scales even if too many words differ.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to write, NAME.safetensors. Published models get a file in their folder."),
    ] = None,
    validation: Annotated[
        list[Path] | None,
        typer.Option(help="Held-out recordings, to compare error rates before and after; repeatable."),
    ] = None,
    draws: Annotated[
        int, typer.Option(help="Random calibration sets to try; the one with the fewest errors is kept.", min=1)
    ] = 1,
    seed: Annotated[int, typer.Option(help="Random seed for the choice of recordings and their augmentation.")] = 1,
) -> None:
    """Convert a model to 8-bit integers, for --precision int8, and compare its texts with those in floats."""
    from model.checkpoint import named
    from model.published.files import is_published

    published = is_published(checkpoint := named(checkpoint))
    _check_options(context, published=published)
    try:
        if published:
            _quantize_published(checkpoint, audio or [], manifest or [], force=force)
            return
        from model.errors import ModelError
        from model.machine.runtime import keep_kernels
        from tutti_asr_lab.training.quantization.run import Places, run

        keep_kernels()
        assert manifest is not None
        assert out is not None
        places = Places(checkpoint, manifest, out, validation or [])
        try:
            path = run(places, draws=draws, seed=seed, announce=typer.echo)
        except ModelError as error:
            fail(error)
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing was written", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


PUBLISHED_ONLY = ("audio", "force")
CHECKPOINT_ONLY = ("out", "validation", "draws", "seed")


def _check_options(context: typer.Context, *, published: bool) -> None:
    """Check that all given options apply to this kind of model. Raises: BadParameter."""
    kind, others = ("published model", CHECKPOINT_ONLY) if published else ("checkpoint", PUBLISHED_ONLY)
    refuse_ignored(context, others, f"does not apply to a {kind}; remove it")
    if published and not any(given_options(context, ("audio", "manifest"))):
        raise typer.BadParameter("--audio: a published model needs recordings, or transcribed ones by --manifest")
    for name in () if published else ("manifest", "out"):
        if not any(given_options(context, (name,))):
            raise typer.BadParameter(f"--{name}: needed to quantize a checkpoint")


def _quantize_published(path: Path, audio: list[Path], manifests: list[Path], *, force: bool) -> None:
    """Write the scales of a published model into its folder."""
    from model.errors import ModelError
    from model.recordings import check_audio, read_manifests, read_pcm
    from server.cli.options import settings_from
    from server.tools.recordings import BadInput, RecordingReader, recordings_of
    from tutti_asr_client.errors import AudioError
    from tutti_asr_lab.training.published.quantize import Spoken, load_floats, quantize

    try:
        rewriting = settings_from({}).graph_rewriting
        model, network = load_floats(path, rewriting)
        rate = model.config.sample_rate
        read = RecordingReader(lambda text: typer.echo(text, err=True))
        spoken = [Spoken(read(each, rate)) for each in recordings_of(audio)]
        utterances = read_manifests(manifests) if manifests else []
        check_audio(utterances)
        spoken += [Spoken(read_pcm(utterance.audio, rate), utterance.text) for utterance in utterances]
        quantized = quantize(model, network, spoken, typer.echo)
    except (ModelError, BadInput, AudioError) as error:
        fail(error)
    report = quantized.report
    for name in ("floats", "int8"):
        if figures := report.get(f"wer_{name}"):
            interval = figures["wer_interval"]
            shown = "" if interval is None else f", 95 % interval {interval[0]:.4f} to {interval[1]:.4f}"
            typer.echo(f"word error rate in {name}: {figures['wer']:.4f}{shown}")
    if not quantized.acceptable and not force:
        typer.echo(f"nothing was written: {quantized.objection}; --force writes the scales anyway", err=True)
        raise typer.Exit(EXIT_FAILED)
    written = quantized.scales.write(model.files.folder)
    typer.echo(f"wrote {written}: {report['products']} of {report['of']} products in 8-bit integers")
