"""Runs of `tutti evaluate`: each combination of precision, decoder and codec over the same recordings."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import typer

from model.acoustic import load_own, log_probs_of
from model.config import ModelConfig
from model.decoder import resolve_decoder
from model.errors import ManifestError, require
from model.evaluation.normalization import DEFAULT, Normalization
from model.evaluation.parts import Selection, selected
from model.lm.language_model import LanguageModel
from model.published.files import is_published
from model.recordings import Utterance, check_audio, read_manifests, read_pcm
from model.text.letters import has_ideographs, ideographs_apart
from model.text.normalization import comparable
from model.whisper import PREFIX, check_folder
from server.audio.pcm import PCM
from server.models.loading import load_acoustic
from server.settings import Settings
from server.tools.evaluate import Evaluation, evaluate, open_coded, remote
from server.tools.evaluate_report import Figures, document, print_report, report_console
from server.tools.evaluate_whisper import OPTION, Against
from server.tools.local import open_local
from tutti_asr_client.files.transcribe import OpenTranscriber

MOST_UNKNOWN = 0.25  # share of unknown words above which a language model gets a warning
LIKELY = 1e-3  # a symbol below this probability in both precisions is never chosen


@dataclass(frozen=True, slots=True)
class Asked:
    """Options shared by all combinations."""

    manifests: Sequence[Path]
    concurrency: int
    query: Mapping[str, Any] = field(default_factory=dict)  # parameters of /v1/listen
    texts: Path | None = None
    partials: bool = False
    as_json: bool = False
    codecs: Sequence[str | None] = (None,)  # applied to the recordings; None: as recorded
    part: Selection = "all"  # of the recordings
    normalization: Normalization = DEFAULT  # of references and transcripts
    against: Path | None = None  # folder of a Whisper model that recognizes them, too
    language: str | None = None  # of the recordings; None: the model's

    @property
    def utterances(self) -> list[Utterance]:
        """Return the recordings to evaluate. Raises: ManifestError; MissingPackage."""
        utterances = selected(read_manifests(self.manifests), self.part)
        check_audio(utterances)
        for utterance in utterances:
            if not comparable(utterance.text):
                raise ManifestError(f"{utterance.where}: text: {utterance.text[:60]!r} contains no words")
        self._check_characters([u for u in utterances if has_ideographs(u.text)])
        return utterances

    def _check_characters(self, utterances: Sequence[Utterance]) -> None:
        """Check that references written without spaces can be scored. Raises: ManifestError; MissingPackage."""
        if not utterances:
            return
        first = utterances[0]
        if self.normalization != "basic":
            raise ManifestError(
                f"{first.where}: text: {first.text[:60]!r} is compared by characters, which --normalize "
                f"{self.normalization} does not do; use --normalize basic"
            )
        require("opencc", "mandarin", "scoring Chinese text")


def run_remote(options: Asked, url: str, api_key: str | None) -> None:
    """Evaluate a running server. Raises: ManifestError, EvaluationFailed."""
    utterances = options.utterances
    _report(options, [_run(options, utterances, remote(url, api_key, options.query), {"url": url}, core_clock=None)])


def run_local(options: Asked, combinations: Sequence[Settings]) -> None:
    """Evaluate the engine in this process and compare log-probs with fp32; and Whisper, if asked.

    Raises: ModelError, EvaluationFailed.
    """
    against, utterances = options.against, options.utterances
    if against is not None:
        check_folder(against, f"{OPTION} {PREFIX}{against}")  # before anything is recognized
    combinations = [settings.of_default for settings in combinations]
    facts = _model_facts(combinations, utterances)
    unknown = cache(partial(_unknown, utterances))  # one warning per file
    for settings, shared in zip(combinations, facts, strict=True):
        if isinstance(settings.lm, Path) and shared["decoder"] == "beam":
            shared["lm_unknown_words"] = unknown(settings.lm)
    runs = [
        _run(options, utterances, _opener(settings, codec, options.query), shared | ({"codec": codec} if codec else {}))
        for settings, shared in zip(combinations, facts, strict=True)
        for codec in options.codecs
    ]
    if against is not None:
        runs += _run_whisper(options, against, facts[0]["languages"], utterances)
    _report(options, runs)


def _run_whisper(
    evaluation: Asked, folder: Path, languages: Sequence[str], utterances: Sequence[Utterance]
) -> list[tuple[Figures, Evaluation]]:
    """Evaluate a Whisper model, one recording at a time, in the language asked for or else the first of ours."""
    against = Against.load(folder, (evaluation.language,) if evaluation.language else languages)
    alone = dataclasses.replace(evaluation, concurrency=1, query={}, partials=False)
    facts: Figures = {"against": against.name, "against_language": against.language}
    return [
        _run(alone, utterances, against.opener(codec), facts | ({"codec": codec} if codec else {}))
        for codec in evaluation.codecs
    ]


def _unknown(utterances: Sequence[Utterance], path: Path) -> float:
    """Return the share of reference words that a language model lacks; prints a warning if it is large."""
    model = LanguageModel.load(path)
    lines = [ideographs_apart(comparable(u.text)) for u in utterances]
    distinct = {word for line in lines for word in line.split()}
    lacking = [word for word in distinct if word not in model]
    share = model.perplexity(lines).unknown_rate
    if 2 * len(lacking) > len(distinct) or share > MOST_UNKNOWN:
        typer.echo(
            f"tutti: warning: {path} lacks {len(lacking)} of the {len(distinct)} different words of the references "
            f"({share:.0%} of all words): they cannot be recognized. Mix it with the shipped model: tutti lm train "
            "--mix shipped:0.7",
            err=True,
        )
    return round(share, 4)


def _opener(settings: Settings, codec: str | None, query: Mapping[str, Any]) -> OpenTranscriber:
    if _decoder_name(settings) == "greedy":
        query = {**query, "keyterm": ()}  # unsupported, but one command may compare both decoders
    if codec is None:
        return partial(open_local, settings, **query)
    return partial(open_coded, settings, codec, **query)


def _decoder_name(settings: Settings) -> str:
    if settings.model is None or not is_published(settings.model):
        return resolve_decoder(settings.decoder, settings.lm)
    return "beam" if settings.decoder == "beam" or isinstance(settings.lm, Path) else "greedy"


def _model_facts(combinations: Sequence[Settings], utterances: Sequence[Utterance]) -> list[Figures]:
    """Return facts of each combination: model, device, precision, and log-prob differences of reduced precisions."""
    facts: list[Figures] = []
    for settings in combinations:
        model = load_acoustic(settings)
        facts.append(
            {
                "precision": model.facts.precision,
                "decoder": _decoder_name(settings),
                "device": str(model.facts.device),
                "model": model.config.name,
                "model_version": model.config.version,
                "model_sha256": model.facts.digest,
                "languages": list(model.config.languages),
            }
        )
    if not isinstance(model.config, ModelConfig):
        return facts  # it has no other form here to compare with: a graph is a file of its own
    reduced = sorted({str(fact["precision"]) for fact in facts} - {"fp32"})
    if reduced:
        first = combinations[0]
        recordings = [read_pcm(u.audio, model.config.sample_rate) for u in utterances]
        gaps = differences(first.model, reduced, first.device, recordings)
        for fact in facts:
            if fact["precision"] in gaps:
                fact["log_prob_difference_to_fp32"] = gaps[fact["precision"]]
    return facts


def differences(
    path: Path | None, precisions: Sequence[str], device: str, recordings: Sequence[PCM]
) -> dict[str, dict[str, float]]:
    """Return the largest difference of natural log-probabilities between each precision and float32, to 1e-4.

    `likely`: of symbols above 0.1 % in either precision. Raises: ModelError.
    """
    full = log_probs_of(load_own(path, device=device, precision="fp32"), recordings)
    found: dict[str, dict[str, float]] = {}
    for name in precisions:
        largest = likely = 0.0
        ours = log_probs_of(load_own(path, device=device, precision=name), recordings)
        for left, right in zip(ours, full, strict=True):
            gap = np.abs(left - right)  # (T, V)
            largest = max(largest, float(gap.max()))
            likely = max(likely, float(gap[np.maximum(left, right) > np.log(LIKELY)].max()))
        found[name] = {"largest": round(largest, 4), "likely": round(likely, 4)}
    return found


def _run(
    options: Asked,
    utterances: Sequence[Utterance],
    opener: OpenTranscriber,
    facts: Figures,
    *,
    core_clock: Callable[[], float] | None = time.process_time,
) -> tuple[Figures, Evaluation]:
    running = evaluate(utterances, opener, options.concurrency, partials=options.partials, core_clock=core_clock)
    evaluation = asyncio.run(running)
    query = {name: value for name, value in options.query.items() if value and name != "keyterm"}
    query |= {"keyterms": list(options.query["keyterm"])} if options.query.get("keyterm") else {}
    part = {} if options.part == "all" else {"part": options.part}
    figures = evaluation.figures(options.normalization, by_part=options.part == "all")
    return {**figures, **part, **facts, **query}, evaluation


def _report(options: Asked, runs: Sequence[tuple[Figures, Evaluation]]) -> None:
    if options.texts is not None:
        lines = [line for figures, evaluation in runs for line in evaluation.lines(**_which(figures))]
        options.texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    combinations = [figures for figures, _ in runs]
    print_report(combinations, report_console(as_json=options.as_json))
    if options.as_json:
        typer.echo(json.dumps(document(combinations)))


def _which(figures: Figures) -> Figures:
    return {name: figures[name] for name in ("against", "precision", "decoder", "codec") if name in figures}
