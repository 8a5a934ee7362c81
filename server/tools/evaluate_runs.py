"""`tutti evaluate`: every asked combination of precision and decoder over the same recordings, one after another."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from model.acoustic import AcousticModel
from model.decoder import language_model_path
from model.evaluation import compare
from model.recordings import Utterance, read_manifests, read_pcm
from model.runtime import set_threads
from server.settings import Settings
from server.tools.evaluate import Evaluation, EvaluationFailed, OpenTranscriber, evaluate, open_coded, remote
from server.tools.evaluate_report import Figures, document, print_report, report_console
from server.tools.local import open_local

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


@dataclass(frozen=True, slots=True)
class Asked:
    """What is common to all combinations."""

    manifests: Sequence[Path]
    concurrency: int
    keyterms: Sequence[str] = ()
    texts: Path | None = None
    partials: bool = False
    as_json: bool = False
    codecs: Sequence[str | None] = (None,)  # that recordings go through; None: through none


def run_remote(asked: Asked, url: str, api_key: str | None) -> int:
    """Evaluate a running server; returns the exit code. Raises: ManifestError."""
    utterances = read_manifests(asked.manifests)
    return _report(asked, lambda: [_run(asked, utterances, remote(url, api_key, asked.keyterms), {"url": url})])


def run_local(asked: Asked, combinations: Sequence[Settings]) -> int:
    """Evaluate the engine in this process, and compare with fp32; returns the exit code. Raises: ModelError."""
    utterances = read_manifests(asked.manifests)

    def runs() -> list[tuple[Figures, Evaluation]]:
        facts = _model_facts(combinations, utterances)
        return [
            _run(asked, utterances, _opener(settings, codec, asked.keyterms), _named(shared, codec))
            for settings, shared in zip(combinations, facts, strict=True)
            for codec in asked.codecs
        ]

    return _report(asked, runs)


def _opener(settings: Settings, codec: str | None, keyterms: Sequence[str]) -> OpenTranscriber:
    useful = _useful(keyterms, settings)
    if codec is None:
        return partial(open_local, settings, keyterm=useful)
    return partial(open_coded, settings, codec, keyterm=useful)


def _named(facts: Figures, codec: str | None) -> Figures:
    return facts if codec is None else {**facts, "codec": codec}


def decoder_of(settings: Settings) -> str:
    """The decoder that the settings come to: beam search wherever there is a language model for it."""
    if settings.decoder != "auto":
        return settings.decoder
    return "greedy" if language_model_path(settings) is None else "beam"


def _useful(keyterms: Sequence[str], settings: Settings) -> Sequence[str]:
    """Key terms where the decoder knows any: the same command may compare both decoders."""
    return keyterms if decoder_of(settings) == "beam" else ()


def _model_facts(combinations: Sequence[Settings], utterances: Sequence[Utterance]) -> list[Figures]:
    """What each combination runs on, and what its precision changes."""
    set_threads(combinations[0].threads)
    facts: list[Figures] = []
    for settings in combinations:
        model = AcousticModel.load(settings.model, device=settings.device, precision=settings.precision)
        facts.append(
            {
                "precision": model.precision,
                "decoder": decoder_of(settings),
                "device": str(model.device),
                "model": model.config.name,
                "model_version": model.config.version,
                "model_sha256": model.digest,
            }
        )
    reduced = sorted({str(fact["precision"]) for fact in facts} - {"fp32"})
    if reduced:
        first = combinations[0]
        recordings = [read_pcm(u.audio, model.config.sample_rate) for u in utterances]
        gaps = compare.differences(first.model, reduced, first.device, recordings)
        for fact in facts:
            if fact["precision"] in gaps:
                fact["log_prob_difference_to_fp32"] = dataclasses.asdict(gaps[fact["precision"]])
    return facts


def _run(
    asked: Asked, utterances: Sequence[Utterance], opener: OpenTranscriber, facts: Figures
) -> tuple[Figures, Evaluation]:
    evaluation = asyncio.run(evaluate(utterances, opener, asked.concurrency, partials=asked.partials))
    terms = {"keyterms": list(asked.keyterms)} if asked.keyterms else {}
    return {**evaluation.figures(), **facts, **terms}, evaluation


def _report(asked: Asked, runs: Callable[[], list[tuple[Figures, Evaluation]]]) -> int:
    try:
        done = runs()
    except EvaluationFailed as error:
        typer.echo(f"evaluate: {error}", err=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if asked.texts is not None:
        lines = [line for figures, evaluation in done for line in evaluation.lines(**_which(figures))]
        asked.texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    combinations = [figures for figures, _ in done]
    print_report(combinations, report_console(as_json=asked.as_json))
    if asked.as_json:
        typer.echo(json.dumps(document(combinations)))
    return EXIT_OK


def _which(figures: Figures) -> Figures:
    return {name: figures[name] for name in ("precision", "decoder", "codec") if name in figures}
