"""`tutti lm`: build, prune and measure language models, and tune their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.errors import bad_option, fail
from server.cli.options import CheckedCommand, ManifestOption, ModelOption, Part, PartOption, PrecisionOption

if TYPE_CHECKING:
    from model.evaluation.scoring import Score
    from tutti_asr_lab.training.language_model.train import TrainingOptions
    from tutti_asr_lab.training.language_model.tune import Trial

lm = typer.Typer(name="lm", help="Word n-gram language models for beam search.", no_args_is_help=True)


class Average(StrEnum):
    """The word error rate that tuning minimizes."""

    MEAN = "mean"
    POOLED = "pooled"


@lm.command(cls=CheckedCommand)
def train(
    texts: Annotated[
        list[str],
        typer.Argument(
            help="Texts with one sentence a line, .counts of words and pairs, or ARPA models; FILE:WEIGHT to mix."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(help="Model file to write, .arpa or .arpa.gz.")],
    order: Annotated[int, typer.Option(help="Order of the model: words in its longest n-grams.", min=1, max=6)] = 3,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="Text on which the mixture weights are tuned; repeatable.")
    ] = None,
    min_count: Annotated[
        str | None, typer.Option(help="Minimum counts by order, with commas: 1,1,2 drops trigrams seen once.")
    ] = None,
    vocabulary_size: Annotated[
        int | None, typer.Option(help="Keep only this many of the most frequent words.", min=1)
    ] = None,
    prune: Annotated[
        float, typer.Option(help="Drop n-grams whose removal raises perplexity by less than this fraction.", min=0.0)
    ] = 0.0,
    digits: Annotated[int, typer.Option(help="Decimal places in the file.", min=2, max=7)] = 4,
    mix: Annotated[
        str | None,
        typer.Option(
            help="shipped:SHARE to mix in the shipped model with this share, or none. Default: shipped:0.7 for English "
            "and Chinese texts without weights; none with weights, --held-out or --as-written. For a grammar use none."
        ),
    ] = None,
    as_written: Annotated[
        bool, typer.Option("--as-written", help="Do not normalize words: for languages other than English.")
    ] = False,
) -> None:
    """Build an ARPA model: interpolated modified Kneser-Ney, texts mixed by weight, pruned by entropy.

    Texts are normalized to the spelling of the English acoustic model, unless --as-written is given. Without weights or
    a held-out text, all texts are joined and mixed with the shipped model, since a small text covers little of
    general speech.
    """
    from model.errors import ModelError
    from tutti_asr_lab.training.language_model.arpa_writing import write_arpa
    from tutti_asr_lab.training.language_model.train import TrainingOptions
    from tutti_asr_lab.training.language_model.train import train as make

    paths, weights = _weighted(texts)
    options = TrainingOptions(
        order=order,
        weights=weights,
        held_out=tuple(held_out or ()),
        min_counts=_counts(min_count),
        vocabulary_size=vocabulary_size,
        threshold=prune,
        as_written=as_written,
    )
    try:
        options = replace(options, mix=_mixed(mix, paths, options))
        if options.mix is not None:
            typer.echo(f"mixed with the shipped model, share {options.mix[1]:g}; --mix none leaves it out")
        write_arpa(out, make(paths, options, typer.echo), digits=digits)
    except (ModelError, OSError) as error:
        fail(error)
    typer.echo(f"wrote {out}, {out.stat().st_size / 1e6:.1f} MB")


@lm.command(cls=CheckedCommand)
def prune(
    model: Annotated[Path, typer.Argument(help="Model file, .arpa or .arpa.gz.")],
    *,
    threshold: Annotated[
        float, typer.Option(help="Drop n-grams whose removal raises perplexity by less than this fraction.", min=0.0)
    ],
    out: Annotated[Path, typer.Option(help="Model file to write, .arpa or .arpa.gz.")],
    digits: Annotated[int, typer.Option(help="Decimal places in the file.", min=2, max=7)] = 4,
) -> None:
    """Prune a model by entropy; no words are removed."""
    from model.errors import ModelError
    from model.lm.arpa import Ngrams, read_arpa
    from tutti_asr_lab.training.language_model.arpa_writing import write_arpa
    from tutti_asr_lab.training.language_model.pruning import prune as pruned

    try:
        large = read_arpa(model)
        write_arpa(out, Ngrams(large.words, tuple(pruned(large.tables, threshold))), digits=digits)
    except (ModelError, OSError) as error:
        fail(error)
    typer.echo(f"wrote {out}, {out.stat().st_size / 1e6:.1f} MB")


@lm.command(cls=CheckedCommand)
def perplexity(
    model: Annotated[Path, typer.Argument(help="Model file, .arpa, .arpa.gz or .lm.")],
    texts: Annotated[
        list[Path], typer.Argument(help="Texts with one sentence a line, or .jsonl manifests, reported by source.")
    ],
) -> None:
    """Measure perplexity per word and sentence end without unknown words, and the share of unknown words."""
    from model.errors import ModelError
    from model.lm.language_model import LanguageModel

    try:
        language = LanguageModel.load(model)
        named = {name: lines for path in texts for name, lines in _named_texts(path).items()}
    except ModelError as error:
        fail(error)
    width = max(map(len, named))
    typer.echo(f"{'text':{width}}  sentences    words  unknown  perplexity")
    for name, lines in named.items():
        found = language.perplexity(lines)
        counts = f"{found.sentences:9d}  {found.words:7d}"
        typer.echo(f"{name:{width}}  {counts}  {found.unknown_rate:7.2%}  {found.perplexity:10.1f}")


@lm.command(cls=CheckedCommand)
def tune(
    *,
    manifest: ManifestOption,
    language_model: Annotated[
        Path | None, typer.Option("--lm", help="Language model to tune for. Default: the shipped one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the weights, JSON. Default: next to the language model.")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="File of weights to start from, JSON.")] = None,
    trials: Annotated[int, typer.Option(help="Number of weight settings to try.", min=1)] = 100,
    objective: Annotated[
        Average,
        typer.Option(help="Minimize the mean of the sources' word error rates, or the rate of all words pooled."),
    ] = Average.MEAN,
    beams: Annotated[int | None, typer.Option(help="Beam width. Default: as `tutti serve`.", min=1, max=1_024)] = None,
    threads: Annotated[int, typer.Option(help="Recordings decoded at once.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Random seed of the search.")] = 1,
    part: PartOption = Part.A,
    model: ModelOption = None,
    precision: PrecisionOption,
) -> None:
    """Search for the language-model, word and unknown-word weights with the fewest errors.

    The search uses part A of the recordings; the best weights are also measured on part B, which has other speakers.
    """
    from concurrent.futures import ThreadPoolExecutor
    from functools import partial

    from model.ctc.weights import DecodingWeights
    from model.errors import ModelError
    from model.evaluation.parts import selected
    from model.machine.runtime import keep_kernels
    from model.recordings import read_manifests
    from tutti_asr_lab.training.evaluation.outputs import decode
    from tutti_asr_lab.training.language_model.tune import TunedSearch, search

    keep_kernels()
    try:
        tuned = TunedSearch.load(model, language_model, precision=precision)
        first = tuned.language.weights if start is None else DecodingWeights.load(start)
        utterances = read_manifests(manifest)
        outputs = tuned.outputs_of(selected(utterances, part.value))
        rest = tuned.outputs_of(selected(utterances, "B")) if part is Part.A else []
    except ModelError as error:
        fail(error)
    decoder = partial(tuned.decoder, beams)
    decoder(first).warm_up()
    sources = sorted({item.utterance.source for item in outputs})
    typer.echo(_heading(sources))
    with ThreadPoolExecutor(threads) as executor:
        done = search(
            outputs,
            decoder,
            first,
            trials,
            objective.value,
            executor=executor,
            seed=seed,
            report=lambda trial: typer.echo(_row(trial, sources)),
        )
        held_out = decode(decoder(done[0].weights), rest, executor)
    _print_best(done, sources, held_out)
    target = out or tuned.weights_file
    done[0].weights.save(target)
    typer.echo(f"wrote {target}")


def _mixed(asked: str | None, paths: Sequence[Path], options: TrainingOptions) -> tuple[Path, float] | None:
    """Return the shipped model of the texts' language and its share. Raises: typer.BadParameter, LanguageModelError."""
    from model.decoder import language_model_path
    from model.text.letters import has_ideographs
    from tutti_asr_lab.training.language_model.train import NO_TEXTS, read_lines

    others = options.weights or options.held_out or any(path.name.endswith(NO_TEXTS) for path in paths)
    if asked == "none" or (asked is None and (others or options.as_written)):
        return None
    name, _, share = (asked or "shipped:0.7").partition(":")
    try:
        found = float(share or "0.7")
    except ValueError:
        found = 0.0
    if name != "shipped" or not 0 < found < 1:
        raise bad_option("--mix", asked, "must be none or shipped:SHARE, with a share such as 0.7")
    if others:
        raise bad_option(
            "--mix", asked, "cannot be combined with weights, --held-out, .counts or models; list it as a text"
        )
    chinese = any(has_ideographs(line) for line in read_lines(paths[0], as_written=True))
    path = language_model_path(None, "zh" if chinese else "en")
    return None if path is None else (path, found)


def _weighted(texts: Sequence[str]) -> tuple[list[Path], tuple[float, ...]]:
    """Split FILE:WEIGHT into files and weights."""
    paths: list[Path] = []
    weights: list[float] = []
    for text in texts:
        name, colon, weight = text.rpartition(":")
        if colon and not Path(text).exists():
            try:
                weights.append(float(weight))
            except ValueError:
                raise bad_option("TEXTS", text, "must be an existing file, or FILE:WEIGHT") from None
            paths.append(Path(name))
        else:
            paths.append(Path(text))
    return paths, tuple(weights)


def _counts(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        counts = tuple(int(count) for count in text.split(","))
    except ValueError:
        raise bad_option("--min-count", text, "must be whole numbers with commas, such as 1,1,2") from None
    if list(counts) != sorted(counts) or counts[0] < 1:
        raise bad_option("--min-count", text, "must be at least 1 each and non-decreasing, such as 1,1,2")
    return counts


def _named_texts(path: Path) -> dict[str, list[str]]:
    """Return the lines of a text under its name, or those of a manifest by source."""
    from model.recordings import read_manifest
    from model.text.letters import ideographs_apart
    from tutti_asr_lab.training.language_model.train import read_lines

    if path.suffix != ".jsonl":
        return {path.name: list(read_lines(path))}
    texts: dict[str, list[str]] = {}
    for row in read_manifest(path):
        texts.setdefault(row.source, []).append(ideographs_apart(row.text))
    return texts


def _print_best(done: Sequence[Trial], sources: Sequence[str], held_out: dict[str, Score]) -> None:
    """Print the ten best trials, and the errors of the best on part B, if it was decoded."""
    typer.echo("\nthe ten best\n" + "\n".join([_heading(sources), *(_row(trial, sources) for trial in done[:10])]))
    if held_out:
        last = replace(done[0], sources=held_out)
        typer.echo("\n".join(["\nthe best on part B", _heading(sorted(held_out)), _row(last, sorted(held_out))]))


def _heading(sources: Sequence[str]) -> str:
    names = "".join(f"{source[:14]:>15}" for source in sources)
    return f"{'lm':>6} {'word':>6} {'unk':>6} {'letter':>6} {'blank':>6} {'mean':>7} {'pooled':>7}{names}"


def _row(trial: Trial, sources: Sequence[str]) -> str:
    weights = trial.weights
    costs = (weights.unknown_cost, weights.unknown_letter_cost, weights.blank_penalty)
    searched = (weights.lm_weight, weights.word_bonus, *costs)
    figures = "".join(f"{trial.sources[source].wer:15.4f}" for source in sources)
    left = " ".join(f"{value:6.3f}" for value in searched)
    return f"{left} {trial.loss('mean')[0]:7.4f} {trial.loss('pooled')[0]:7.4f}{figures}"
