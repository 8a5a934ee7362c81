"""Training of an n-gram model: one Kneser-Ney model per source, mixed with weights tuned on a held-out text, pruned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from model.errors import LanguageModelError
from model.lm.arpa import Ngrams, read_arpa
from model.lm.trie import SPECIAL_WORDS, NgramTable, build_trie
from model.machine.compiled import DoubleArray
from model.text import files as text_files
from model.text.letters import unspellable
from model.text.normalization import plain
from model.text.spelled import spoken
from tutti_asr_lab.training.language_model.counting import choose_vocabulary, count_ngrams, count_words, number_words
from tutti_asr_lab.training.language_model.existing import SUFFIXES as MODEL_SUFFIXES
from tutti_asr_lab.training.language_model.existing import over_vocabulary, respelled, word_counts
from tutti_asr_lab.training.language_model.kneser_ney import estimate
from tutti_asr_lab.training.language_model.mixture import mix, tune_weights
from tutti_asr_lab.training.language_model.pair_counts import SUFFIX as COUNTS_SUFFIX
from tutti_asr_lab.training.language_model.pair_counts import pair_model, read_counts
from tutti_asr_lab.training.language_model.pruning import prune

Report = Callable[[str], None]
NO_TEXTS = (COUNTS_SUFFIX, *MODEL_SUFFIXES)
MOST_SHOWN = 40  # letters


def _say_nothing(_: str) -> None:
    """Default report: does nothing."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of a training run.

    `as_written` keeps the words as they are instead of spelling them as English. `weights` (one per source) and
    `held_out` exclude each other; with neither, all texts are joined. `min_counts` are by order; `vocabulary_size` is
    the number of most frequent words to keep; `threshold` is that of `pruning.prune`, 0 for no pruning.
    """

    order: int = 3
    weights: tuple[float, ...] = ()
    held_out: tuple[Path, ...] = ()
    min_counts: tuple[int, ...] = ()
    vocabulary_size: int | None = None
    threshold: float = 0.0
    as_written: bool = False
    mix: tuple[Path, float] | None = None  # a shipped model to mix with, and its weight


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a mixture: a text as lines of spelled words, counts of words and pairs, or a model."""

    name: str
    lines: tuple[str, ...] = ()
    words: dict[str, int] = field(default_factory=dict)
    pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    model: Ngrams | None = None


def read_lines(path: Path, *, as_written: bool = False, report: Report = _say_nothing) -> tuple[str, ...]:
    """Read the sentences of a text, one per line, as written or in the English acoustic model's spelling.

    Letters of other alphabets, which have no such spelling, are reported. Raises: LanguageModelError if the file cannot
    be read or has no words.
    """
    written = text_files.read_lines(path, LanguageModelError)
    lost = "" if as_written else unspellable("".join(written))
    if lost:
        report(f"{path}: dropping letters of other alphabets: {lost[:MOST_SHOWN]}; --as-written keeps them")
    spell = _folded if as_written else _spoken
    lines = tuple(spell(line) for line in written)
    if not any(lines):
        raise LanguageModelError(f"{path} has no words")
    return lines


def _folded(line: str) -> str:
    return plain(line)


def _spoken(line: str) -> str:
    return spoken(plain(line))


def read_source(path: Path, *, as_written: bool = False, report: Report = _say_nothing) -> Source:
    """Read a text; or counts if the name ends in .counts, or a model if it ends in .arpa or .arpa.gz."""
    if path.name.endswith(MODEL_SUFFIXES):
        return Source(
            path.name.partition(".arpa")[0], model=respelled(read_arpa(path), _folded if as_written else spoken)
        )
    if path.suffix == COUNTS_SUFFIX:
        words, pairs = read_counts(path)
        return Source(path.stem, (), words, pairs)
    return Source(path.stem, read_lines(path, as_written=as_written, report=report))


def train(paths: Sequence[Path], options: TrainingOptions, report: Report) -> Ngrams:
    """Train a model. Raises: LanguageModelError for texts or options that cannot be used."""
    _check(paths, options)
    sources = [read_source(path, as_written=options.as_written, report=report) for path in paths]
    held_out = [line for path in options.held_out for line in read_lines(path, as_written=options.as_written)]
    if not (held_out or options.weights):
        sources = [Source("text", tuple(line for source in sources for line in source.lines))]
    if options.mix is not None:
        model, share = options.mix
        sources.append(Source("shipped", model=read_arpa(model)))
        options = replace(options, weights=(1 - share, share))
    report(f"{len(sources)} source(s), {sum(len(source.lines) for source in sources)} sentences")
    words = _vocabulary(sources, options, held_out)
    report(f"vocabulary: {len(words)} words")
    models = [_estimated(source, words, options.order, options.min_counts) for source in sources]
    if len(models) == 1:
        tables = models[0]
    else:
        weights = np.array(options.weights) / sum(options.weights) if options.weights else None
        if weights is None:
            weights = tune_weights([build_trie(model) for model in models], number_words(held_out, words))
        for source, weight in sorted(zip(sources, weights, strict=True), key=lambda pair: -pair[1]):
            report(f"  weight {weight:.4f} {source.name}")
        tables = mix(models, weights.tolist())
    report(f"n-grams: {_sizes(tables)}")
    if options.threshold:
        tables = prune(tables, options.threshold)
        report(f"pruned:  {_sizes(tables)}")
    return Ngrams(words, tuple(tables))


def _check(paths: Sequence[Path], options: TrainingOptions) -> None:
    if options.weights and options.held_out:
        raise LanguageModelError("weights and --held-out are mutually exclusive: the latter tunes the weights")
    if options.weights and (len(options.weights) != len(paths) or min(options.weights) <= 0):
        raise LanguageModelError("either every text must have a weight above 0, or none")
    if not (options.weights or options.held_out) and any(path.name.endswith(NO_TEXTS) for path in paths):
        raise LanguageModelError("to mix counts and models with texts, give weights or --held-out")
    if options.mix is not None and (options.weights or options.held_out):
        raise LanguageModelError("--mix excludes weights and --held-out: give the model as a source instead")
    if options.mix is not None and not 0 < options.mix[1] < 1:
        raise LanguageModelError(f"--mix: the share of the shipped model must be between 0 and 1, not {options.mix[1]}")
    if options.order < 1:
        raise LanguageModelError(f"the order must be at least 1, not {options.order}")


def _vocabulary(sources: Sequence[Source], options: TrainingOptions, held_out: Sequence[str]) -> tuple[str, ...]:
    """Most frequent words in the mixture of the sources."""
    least = options.min_counts[0] if options.min_counts else 1
    counts = [_word_counts(source) for source in sources]
    seen = [Counter({word: n for word, n in count.items() if n >= least}) for count in counts]
    every = (*SPECIAL_WORDS, *sorted(set().union(*seen) - set(SPECIAL_WORDS)))
    if options.vocabulary_size is None or len(every) <= options.vocabulary_size:
        return every
    shares = np.ones(1)
    if len(sources) > 1:
        shares = np.array(options.weights) / sum(options.weights) if options.weights else np.zeros(0)
        if not len(shares):
            models = [_estimated(source, every, 1, ()) for source in sources]
            shares = tune_weights([build_trie(model) for model in models], number_words(held_out, every))
    return choose_vocabulary(_mixed(seen, shares), options.vocabulary_size, 0.0)


def _word_counts(source: Source) -> Counter[str]:
    if source.model is not None:
        return word_counts(source.model)
    return Counter(source.words) if source.words else count_words(source.lines)


def _mixed(counts: Sequence[Counter[str]], shares: DoubleArray) -> Counter[str]:
    mixed: Counter[str] = Counter()
    for each, share in zip(counts, shares.tolist(), strict=True):
        total = sum(each.values())
        for word, count in each.items():
            mixed[word] += share * count / total
    return mixed


def _estimated(source: Source, words: Sequence[str], order: int, min_counts: Sequence[int]) -> list[NgramTable]:
    if source.model is not None:
        return over_vocabulary(source.model, words, order)
    if source.words:
        return pair_model(source.words, source.pairs, words, min(order, 2))
    return estimate(count_ngrams(number_words(source.lines, words), len(words), order), min_counts)


def _sizes(tables: Sequence[NgramTable]) -> str:
    return ", ".join(f"{len(table)} of {n}" for n, table in enumerate(tables, 1))
