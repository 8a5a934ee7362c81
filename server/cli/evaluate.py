"""The options of `tutti evaluate`. Everything of weight is imported when the command runs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from server.settings import Settings

EXIT_FAILED = 1


def evaluate(
    *,
    manifest: Annotated[list[Path], typer.Option(help="JSON lines with audio and text; repeatable.")],
    precision: Annotated[
        str | None, typer.Option(help="auto, fp32, bf16, fp16 (GPU), int8 (CPU); several with commas. Default: auto.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="greedy, beam, or both with a comma. Default: what `tutti serve` takes.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Hypotheses that beam search keeps.")] = None,
    lm: Annotated[
        str | None, typer.Option(help="An .arpa or .lm language model, or off. Default: the shipped one.")
    ] = None,
    keyterm: Annotated[list[str] | None, typer.Option(help="A word or phrase to listen for; repeatable.")] = None,
    codec: Annotated[
        str | None, typer.Option(help="none, mulaw, alaw: as over a telephone, 8 kHz; several with commas.")
    ] = None,
    partials: Annotated[
        bool, typer.Option("--partials", help="Also how steady the partials are: shown words that change, delays.")
    ] = False,
    url: Annotated[str | None, typer.Option(help="A running server, e.g. ws://127.0.0.1:8080.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document as the last line.")] = False,
    texts: Annotated[Path | None, typer.Option(help="Write every transcript there, as JSON lines.")] = None,
    concurrency: Annotated[int, typer.Option(help="Recordings at a time.", min=1)] = 32,
    api_key: Annotated[str | None, typer.Option(help="API key of that server.", envvar="TUTTI_API_KEY")] = None,
    model: Annotated[Path | None, typer.Option(help="A .safetensors checkpoint. Default: the shipped model.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda. Default: auto.")] = None,
) -> None:
    """Word and character error rates by source: of each combination of precision, decoder and codec, or of a server.

    The figures of partials are in audio time: delays are the decoder's own, whatever the machine's speed.
    """
    from model.errors import ModelError
    from server.tools.evaluate_runs import Asked, run_local, run_remote

    asked = Asked(manifest, concurrency, keyterm or (), texts, partials, as_json, _codecs(codec))
    ours = {"precision": precision, "decoder": decoder, "beams": beams, "lm": lm, "model": model, "device": device}
    try:
        if url is not None:
            _refuse({**ours, "codec": codec})
            code = run_remote(asked, url, api_key)
        else:
            code = run_local(asked, combinations(ours, concurrency))
    except ModelError as error:
        typer.echo(f"tutti: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
    raise typer.Exit(code)


def combinations(options: dict[str, Any], concurrency: int) -> list[Settings]:
    """Settings of every precision with every decoder, precisions outermost. Raises: typer.BadParameter."""
    from pydantic import ValidationError

    from server.settings import Settings

    # A slot comes back a moment late, so there are more of them than recordings at a time.
    shared = {**options, "max_batch": concurrency, "max_streams": 2 * concurrency}
    names = [(options[name] or "").split(",") for name in ("precision", "decoder")]
    try:
        return [
            Settings(**{k: v for k, v in {**shared, "precision": p, "decoder": d}.items() if v not in (None, "")})
            for p, d in itertools.product(*names)
        ]
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(f"--{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _codecs(named: str | None) -> list[str | None]:
    """What the recordings are to go through. Raises: typer.BadParameter."""
    from server.tools.evaluate import TABLES

    names = (named or "none").split(",")
    unknown = sorted({*names} - {*TABLES, "none"})
    if unknown:
        raise typer.BadParameter(f"--codec: {unknown[0]} is none of {', '.join([*TABLES, 'none'])}")
    return [None if name == "none" else name for name in names]


def _refuse(options: dict[str, Any]) -> None:
    """What a running server has decided cannot be chosen here. Raises: typer.BadParameter."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: a running server decides that itself; leave out --url")
