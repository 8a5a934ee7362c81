"""Measurement of key terms: recall of words that the language model does not know, and errors in all other words.

`python -m loadtest.benchmarks.keyterms --manifest …` writes `loadtest/results/keyterms.json` and `.md`. The acoustic
model runs once per recording; its output is decoded without terms and with lists of several lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from loadtest.benchmarks.keyterms.cases import NAMES, REAL, SYNTHETIC, Case, real_cases, synthetic_cases, term_lists
from loadtest.benchmarks.keyterms.report import Keyterms, Row, row, table, write
from loadtest.errors import BadSettings
from loadtest.program import EXIT_OK, RESULTS, carry_out
from loadtest.reports import environment, pages
from model.acoustic import load_own, log_probs_of
from model.config import BEAMS, MAX_BEAMS, ModelConfig
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import Decoder, LogProbs
from model.decoder import language_model_path, make_decoder
from model.errors import ModelError
from model.evaluation.scoring import TermScore, score_terms
from model.lm.language_model import LanguageModel
from model.recordings import PCM, read_manifests


def with_closing_silence(config: ModelConfig, cases: Sequence[Case]) -> list[PCM]:
    """Return the recordings, each with the silence added when a stream closes."""
    return [np.pad(case.pcm, (0, config.flush_steps * config.step_samples)) for case in cases]


def decode(decoder: Decoder, config: ModelConfig, outputs: Sequence[LogProbs], biases: Sequence[Bias]) -> Iterator[str]:
    """Return the text of each recording, decoded step by step like a stream, with its own key terms."""
    for log_probs, bias in zip(outputs, biases, strict=True):
        state = decoder.start(config.delay_frames, bias)
        for first in range(0, len(log_probs), config.frames_per_step):
            decoder.advance([state], log_probs[None, first : first + config.frames_per_step])
        yield " ".join(word.text for word in decoder.take(state))
        decoder.release(state)


def measure(
    cases: Sequence[Case],
    outputs: Sequence[LogProbs],
    decoder: Decoder,
    config: ModelConfig,
    *,
    pool: Sequence[str],
    distractors: Sequence[int],
    weight: float | None,
    seed: int,
) -> list[Row]:
    """Decode every recording without key terms, with its own terms, and with each number of distractors added."""
    rows = []
    for count in (None, 0, *distractors):
        lists = [()] * len(cases) if count is None else term_lists(cases, pool, count, seed)
        biases = [Bias.of([(term, weight) for term in terms]) if terms else NO_BIAS for terms in lists]
        texts = decode(decoder, config, outputs, biases)
        scores: dict[str, list[TermScore]] = {REAL: [], SYNTHETIC: []}
        for case, text, terms in zip(cases, texts, lists, strict=True):
            scores[case.kind].append(score_terms(case.reference, text, case.said, terms))
        rows += [row(kind, count, found) for kind, found in scores.items() if found]
    return sorted(rows, key=lambda one: one.kind)


@dataclass(frozen=True, slots=True)
class Options:
    """Settings: recordings, lists of key terms, acoustic model and decoder."""

    manifests: Sequence[Path]
    sentences: int
    distractors: Sequence[int]
    weight: float | None
    beams: int
    lm: Path | None
    model: Path | None
    precision: str
    seed: int


def run(options: Options, command: str) -> Keyterms:
    """Create the cases, run the model, decode and score. Raises: ModelError, BadSettings."""
    path = language_model_path(options.lm)
    if path is None:
        raise BadSettings("--lm: required, since key terms are words outside a language model's vocabulary")
    lm = LanguageModel.load(path)
    model = load_own(options.model, precision=options.precision, threads=0)
    cases = real_cases(read_manifests(options.manifests), lm.__contains__, model.config.sample_rate)
    cases += synthetic_cases(lm.__contains__, options.sentences, options.seed)
    pool = [*(term for case in cases for term in case.said), *(name for name in NAMES if name not in lm)]
    rows = measure(
        cases,
        log_probs_of(model, with_closing_silence(model.config, cases)),
        make_decoder(config=model.config, decoder="beam", beams=options.beams, lm=options.lm),
        model.config,
        pool=pool,
        distractors=options.distractors,
        weight=options.weight,
        seed=options.seed,
    )
    facts: dict[str, str | int | float | None] = {
        "model": model.digest[:12],
        "precision": model.precision,
        "lm": lm.digest[:12],
        "beams": options.beams,
        "weight": options.weight,
        "seed": options.seed,
        "different_terms": len(set(pool)),
    }
    return Keyterms(command, facts, tuple(rows), environment.describe(options.seed))


def main(
    *,
    manifest: Annotated[list[Path], typer.Option(help="Real recordings as JSON lines; repeatable.")],
    sentences: Annotated[int, typer.Option(help="Number of synthetic sentences with a name.", min=0)] = 160,
    distractors: Annotated[str, typer.Option(help="Numbers of distractors, with commas.")] = "10,50,100",
    weight: Annotated[float | None, typer.Option(help="Weight of every term. [default: 1]")] = None,
    beams: Annotated[int, typer.Option(help="Beam width: hypotheses kept per stream.", min=1, max=MAX_BEAMS)] = BEAMS,
    lm: Annotated[Path | None, typer.Option(help="Language model. [default: the shipped one]")] = None,
    model: Annotated[Path | None, typer.Option(help="Checkpoint. [default: the shipped one]")] = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16, fp16 or int8.")] = "auto",
    seed: Annotated[int, typer.Option(help="Random seed for sentences, voices and lists.")] = 1,
    folder: Annotated[Path, typer.Option(help="Folder for keyterms.json and .md.")] = RESULTS,
) -> None:
    """Measure recall of key terms unknown to the language model, and the error rate of all other words."""

    def work(command: str) -> int:
        lengths = [int(part) for part in distractors.split(",")]
        options = Options(manifest, sentences, lengths, weight, beams, lm, model, precision, seed)
        found = run(options, command)
        Console(stderr=True).print(table(found))
        pages.show_written(found, write(found, folder))
        return EXIT_OK

    carry_out("loadtest.benchmarks.keyterms", work, ModelError, ValueError)


if __name__ == "__main__":
    typer.run(main)
