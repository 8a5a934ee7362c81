"""`tutti evaluate`: the combinations to run, from lists with commas, or a running server."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.errors import EXIT_INTERRUPTED, bad_option, fail
from server.cli.options import (
    DeviceSetting,
    FinalsOption,
    GrammarOption,
    GrammarsOption,
    JsonOption,
    KeyOption,
    LanguageOption,
    ManifestOption,
    ModelOption,
    Part,
    PartOption,
    UrlOption,
    model_for,
    settings_from,
)

if TYPE_CHECKING:
    from server.settings import Settings


def evaluate(
    *,
    manifest: ManifestOption,
    precision: Annotated[
        str | None,
        typer.Option(help="auto, fp32, bf16, fp16 (GPU), int8 (CPU); several with commas. Default: {default}."),
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="greedy, beam, or both with a comma. Default: what `tutti serve` takes.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Hypotheses that beam search keeps.")] = None,
    lm: Annotated[
        str | None, typer.Option(help="An .arpa or .lm language model, or off. Default: the shipped one.")
    ] = None,
    grammars: GrammarsOption = None,
    keyterm: Annotated[list[str] | None, typer.Option(help="A word or phrase to listen for; repeatable.")] = None,
    codec: Annotated[
        str | None, typer.Option(help="none, mulaw, alaw: as over a telephone, 8 kHz; several with commas.")
    ] = None,
    part: PartOption = Part.ALL,
    partials: Annotated[
        bool, typer.Option("--partials", help="Also how steady the partials are: shown words that change, delays.")
    ] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
    texts: Annotated[Path | None, typer.Option(help="Write every transcript there, as JSON lines.")] = None,
    concurrency: Annotated[int, typer.Option(help="Recordings at a time.", min=1)] = 32,
    api_key: KeyOption = None,
    language: LanguageOption = None,
    grammar: GrammarOption = None,
    finals: FinalsOption = None,
    model: ModelOption = None,
    device: DeviceSetting = None,
) -> None:
    """Word and character error rates by source: of each combination of precision, decoder and codec, or of a server.

    The figures of partials are in audio time: delays are the decoder's own, whatever the machine's speed.
    """
    from model.errors import ModelError
    from server.errors import SettingsError
    from server.tools.evaluate import EvaluationFailed
    from server.tools.evaluate_runs import Asked, run_local, run_remote

    query: dict[str, Any] = {"keyterm": tuple(keyterm or ())}
    query |= {"grammar": grammar} if grammar else {}
    query |= {"finals": finals} if finals else {}
    query |= {"language": language} if language and url is not None else {}
    asked = Asked(manifest, concurrency, query, texts, partials, as_json, _codecs(codec), part.value)
    ours: dict[str, Any] = {"precision": precision, "decoder": decoder, "beams": beams, "lm": lm, "device": device}
    ours |= {"model": model_for(language, model)}
    ours |= {"grammars": grammars}
    try:
        if url is not None:
            _refuse({**ours, "codec": codec})
            run_remote(asked, url, api_key)
        else:
            run_local(asked, combinations(ours, concurrency))
    except (ModelError, SettingsError, EvaluationFailed) as error:
        fail(error, ours)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def combinations(options: dict[str, Any], concurrency: int) -> list[Settings]:
    """Settings of every precision with every decoder, precisions outermost. Raises: typer.Exit."""
    # A slot is free again only after its recording's last batch, so there are more slots than recordings at a time.
    shared = {**options, "max_batch": concurrency, "max_streams": 2 * concurrency}
    names = [(options[name] or "").split(",") for name in ("precision", "decoder")]
    return [
        settings_from({**shared, "precision": precision or None, "decoder": decoder or None})
        for precision, decoder in itertools.product(*names)
    ]


def _codecs(named: str | None) -> list[str | None]:
    """Codecs to apply to the recordings, None for none. Raises: typer.BadParameter."""
    from server.tools.evaluate import TABLES

    names = (named or "none").split(",")
    unknown = sorted({*names} - {*TABLES, "none"})
    if unknown:
        raise bad_option(
            "--codec", unknown[0], f"must be one of {', '.join([*TABLES, 'none'])}, or several with commas"
        )
    return [None if name == "none" else name for name in names]


def _refuse(options: dict[str, Any]) -> None:
    """Refuse options that a running server has decided. Raises: typer.BadParameter."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: is decided by the running server; leave it out, or --url")
