"""`tutti evaluate`: error rates of each requested combination of precision, decoder and codec, or of a server."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.errors import EXIT_INTERRUPTED, bad_option, fail, refuse_ignored
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
    Normalize,
    Part,
    PartOption,
    UrlOption,
    announce_compilation,
    model_for,
    one_of,
    settings_from,
)

if TYPE_CHECKING:
    from server.settings import Settings

OF_THIS_PROCESS = ("precision", "decoder", "beams", "lm", "grammars", "codec", "against", "model", "device")


def evaluate(
    context: typer.Context,
    *,
    manifest: ManifestOption,
    precision: Annotated[
        str | None,
        typer.Option(help="auto, fp32, bf16, fp16 (GPU) or int8 (CPU); or several with commas. Default: {default}."),
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="greedy, beam, or both with a comma. Default: as `tutti serve`.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Beam width: hypotheses kept per stream.")] = None,
    lm: Annotated[
        str | None, typer.Option(help="Language model, .arpa or .lm; or off. Default: the shipped one.")
    ] = None,
    grammars: GrammarsOption = None,
    keyterm: Annotated[list[str] | None, typer.Option(help="Key term: a word or phrase to favor; repeatable.")] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            help="Encode recordings at 8 kHz, as telephony does: none, mulaw or alaw; or several with commas."
        ),
    ] = None,
    part: PartOption = Part.ALL,
    normalize: Annotated[
        Normalize,
        typer.Option(
            help="Before comparing: none (texts as written), basic (lower case, no punctuation) or english (Whisper's "
            "rules; also numbers, contractions and spelling)."
        ),
    ] = Normalize.BASIC,
    partials: Annotated[
        bool,
        typer.Option(
            "--partials", help="Also measure partial results: words that change after being shown, and delays."
        ),
    ] = False,
    interim_stability: Annotated[
        str | None,
        typer.Option(
            help="With --partials: which words they have, low or high. Default: low.", callback=one_of("low", "high")
        ),
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="Also recognize the recordings with Whisper, for comparison: whisper:DIR, the folder of a model in "
            "CTranslate2's form. Needs the extra `whisper`."
        ),
    ] = None,
    texts: Annotated[Path | None, typer.Option(help="Write all transcripts to this file, as JSON lines.")] = None,
    concurrency: Annotated[int, typer.Option(help="Recordings decoded at once.", min=1)] = 32,
    api_key: KeyOption = None,
    language: LanguageOption = None,
    grammar: GrammarOption = None,
    finals: FinalsOption = None,
    model: ModelOption = None,
    device: DeviceSetting = None,
) -> None:
    """Measure word and character error rates by source, for each combination of precision, decoder and codec.

    With --url, measures a running server instead. Delays of partial results are in audio time: they do not depend on
    the speed of the machine.
    """
    from model.errors import ModelError
    from model.evaluation.normalization import check_installed
    from server.errors import SettingsError
    from server.tools.evaluate import EvaluationFailed
    from server.tools.evaluate_runs import Asked, run_local, run_remote

    if url is None:
        refuse_ignored(context, ["api_key"], "needs --url")
    else:
        refuse_ignored(context, OF_THIS_PROCESS, "cannot be combined with --url; the server determines it")
    if not partials:
        refuse_ignored(context, ["interim_stability"], "needs --partials")
    check_installed(normalize.value)
    query: dict[str, Any] = {"grammar": grammar, "finals": finals, "interim_stability": interim_stability}
    query |= {"keyterm": tuple(keyterm or ()), "language": url and language}
    query = {name: value for name, value in query.items() if value}
    options = Asked(
        *(manifest, concurrency, query, texts, partials, as_json, _codecs(codec), part.value, normalize.value),
        against=_whisper_folder(against),
        language=language,
    )
    ours: dict[str, Any] = {"precision": precision, "decoder": decoder, "beams": beams, "lm": lm, "device": device}
    ours |= {"model": model_for(language, model), "grammars": grammars}
    try:
        if url is not None:
            run_remote(options, url, api_key)
        else:
            announce_compilation()
            run_local(options, combinations(ours, concurrency))
    except (ModelError, SettingsError, EvaluationFailed) as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def combinations(options: dict[str, Any], concurrency: int) -> list[Settings]:
    """Return settings for every precision with every decoder, precisions outermost. Raises: typer.Exit.

    Options of beam search are not for greedy decoding next to it.
    """
    # A slot is freed only after its recording's last batch, so there are more slots than concurrent recordings.
    shared = {**options, "max_batch": concurrency, "max_streams": 2 * concurrency}
    precisions, decoders = ((options[name] or "").split(",") for name in ("precision", "decoder"))
    greedy = {"beams": None, "lm": None} if len(decoders) > 1 else {}
    return [
        settings_from(
            {**shared, "precision": precision or None, "decoder": decoder or None}
            | (greedy if decoder == "greedy" else {})
        )
        for precision, decoder in itertools.product(precisions, decoders)
    ]


def _codecs(named: str | None) -> list[str | None]:
    """Return the codecs to apply to the recordings; None means no codec. Raises: typer.BadParameter."""
    from server.tools.evaluate import TABLES

    names = (named or "none").split(",")
    unknown = sorted({*names} - {*TABLES, "none"})
    if unknown:
        raise bad_option(
            "--codec", unknown[0], f"must be one of {', '.join([*TABLES, 'none'])}, or several with commas"
        )
    return [None if name == "none" else name for name in names]


def _whisper_folder(against: str | None) -> Path | None:
    """Return the folder of `whisper:DIR`. Raises: typer.BadParameter."""
    from model.whisper import folder_of

    try:
        return None if against is None else folder_of(against)
    except ValueError as error:
        raise bad_option("--against", against, str(error)) from None
