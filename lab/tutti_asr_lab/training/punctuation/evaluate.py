"""Evaluation of the tagger: precision, recall and F1 of marks and capitals on unseen books, compared with the rules.

`python -m tutti_asr_lab.training.punctuation.evaluate TEXTS --out FILE` reads the unseen books of TEXTS, writes
FILE.json and FILE.md. A book is split into finals of whole sentences, as pauses split speech. Every final ends with a
mark, which is easy, so the marks inside finals are also counted separately.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model.errors import TrainingError
from model.punctuation.marks import COMMA, ENDS, PERIOD, QUESTION, Labeled, parse_word
from model.punctuation.rules import capital_i, is_question
from model.punctuation.tagger import Tagger
from model.punctuation.weights import SHIPPED, load
from tutti_asr_lab.training.punctuation.corpus import read_tokens

Tag = Callable[[Sequence[str]], list[Labeled]]

SEED = 23
MORE_SENTENCES = 0.45  # probability that a final ends after a sentence: 2.2 sentences on average
LONGEST = 64  # words of a final
WORDS = 8_000  # from the beginning of each book, so that all books have equal weight
TIMED_WORDS = 30
TIMED_RUNS = 200
ERROR_RATES = (0.1,)  # word error rates of the rows with simulated recognition errors
LABELS = ("comma", "period", "question mark", "period inside", "question mark inside", "capital", "capital inside")


@dataclass(slots=True)
class Count:
    """Counts of a label: in the reference, found, and correctly found."""

    wanted: int = 0
    found: int = 0
    right: int = 0

    def add(self, wanted: bool, found: bool) -> None:
        """Count one word."""
        self.wanted += wanted
        self.found += found
        self.right += wanted and found

    @property
    def rates(self) -> dict[str, float]:
        """Precision, recall and F1; 0 without any label."""
        precision = self.right / self.found if self.found else 0.0
        recall = self.right / self.wanted if self.wanted else 0.0
        total = self.wanted + self.found
        f1 = 2 * self.right / total if total else 0.0
        return {"precision": round(precision, 4), "recall": round(recall, 4), "f1": round(f1, 4), "wanted": self.wanted}


@dataclass(slots=True)
class Counts:
    """Counts by label."""

    labels: dict[str, Count] = field(default_factory=lambda: {name: Count() for name in LABELS})

    def add(self, wanted: Sequence[Labeled], found: Sequence[Labeled]) -> None:
        """Count one final."""
        begins = True
        for i, (truth, guess) in enumerate(zip(wanted, found, strict=True)):
            for name, mark in (("comma", COMMA), ("period", PERIOD), ("question mark", QUESTION)):
                self.labels[name].add(truth.mark == mark, guess.mark == mark)
                if mark != COMMA and i < len(wanted) - 1:
                    self.labels[f"{name} inside"].add(truth.mark == mark, guess.mark == mark)
            self.labels["capital"].add(truth.capital, guess.capital)
            if not begins:
                self.labels["capital inside"].add(truth.capital, guess.capital)
            begins = truth.mark in ENDS

    @property
    def rates(self) -> dict[str, dict[str, float]]:
        """Rates by label."""
        return {name: count.rates for name, count in self.labels.items()}


def by_rules(words: Sequence[str]) -> list[Labeled]:
    """Tag by the rules, which treat a final as one sentence."""
    found = [Labeled(word, capital=i == 0 or capital_i(word) != word) for i, word in enumerate(words)]
    last = found[-1]
    found[-1] = Labeled(last.word, QUESTION if is_question(words) else PERIOD, last.capital)
    return found


def finals(book: Sequence[Labeled], rng: np.random.Generator) -> Iterator[list[Labeled]]:
    """Split a book into finals of whole sentences; sentences of more than `LONGEST` words are left out."""
    final: list[Labeled] = []
    sentence: list[Labeled] = []
    for word in book:
        sentence.append(word)
        if word.mark not in ENDS:
            continue
        if final and (len(final) + len(sentence) > LONGEST or rng.random() < MORE_SENTENCES):
            yield final
            final = []
        if len(sentence) <= LONGEST:
            final = final + sentence
        sentence = []
    if final:
        yield final


def with_word_errors(alphabet: Sequence[str], rate: float, tag: Tag) -> Tag:
    """Tagger with simulated recognition errors: some words are replaced by alphabetical neighbors."""
    rng = np.random.default_rng(SEED)

    def tag_with_errors(words: Sequence[str]) -> list[Labeled]:
        places = np.searchsorted(alphabet, list(words)) + rng.integers(-4, 5, len(words))
        wrong = rng.random(len(words)) < rate
        near = np.clip(places, 0, len(alphabet) - 1)
        return tag([alphabet[near[i]] if wrong[i] else word for i, word in enumerate(words)])

    return tag_with_errors


def measure(books: Mapping[str, Sequence[Labeled]], taggers: Mapping[str, Tag]) -> dict[str, dict[str, Counts]]:
    """Counts by tagger and book."""
    counts = {name: {book: Counts() for book in books} for name in taggers}
    for book, text in books.items():
        for final in finals(text, np.random.default_rng(SEED)):
            words = [word.word for word in final]
            for name, tag in taggers.items():
                counts[name][book].add(final, tag(words))
    return counts


def pooled(counts: Iterable[Counts]) -> Counts:
    """Sum of counts over books."""
    total = Counts()
    for one in counts:
        for name, count in one.labels.items():
            kept = total.labels[name]
            kept.wanted, kept.found, kept.right = (
                kept.wanted + count.wanted, kept.found + count.found, kept.right + count.right
            )  # fmt: skip
    return total


def median_ms(book: Sequence[Labeled], tag: Tag) -> float:
    """Median milliseconds of the tagger for a final of 30 words."""
    words = [word.word for word in book]
    times_ms = []
    for first in range(0, min(len(words) - TIMED_WORDS, TIMED_RUNS * TIMED_WORDS), TIMED_WORDS):
        began_s = time.perf_counter()
        tag(words[first : first + TIMED_WORDS])
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    return round(statistics.median(times_ms), 3)


def evaluate(folder: Path, weights: Path) -> dict[str, object]:
    """Measure the weights on the unseen books of the folder. Raises: TrainingError, CheckpointError."""
    books = {
        path.stem: [parse_word(token) for token in read_tokens(path)[:WORDS]]
        for path in sorted((folder / "unseen").glob("*.txt"))
    }
    if not books:
        raise TrainingError(
            f"{folder / 'unseen'}: no books; run python -m tutti_asr_lab.training.punctuation.texts first"
        )
    tensors, vocabulary = load(weights)
    tagger, alphabet = Tagger(tensors, vocabulary), sorted(vocabulary.words)
    with_errors: dict[str, Tag] = {
        f"tagger, {rate:.0%} wrong words": with_word_errors(alphabet, rate, tagger.tag) for rate in ERROR_RATES
    }
    counts = measure(books, {"rules": by_rules, "tagger": tagger.tag, **with_errors})
    return {
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "books": len(books),
        "words": sum(len(book) for book in books.values()),
        "ms_for_30_words": median_ms(next(iter(books.values())), tagger.tag),
        "pooled": {name: pooled(by_book.values()).rates for name, by_book in counts.items()},
        "by_book": {book: found.rates for book, found in counts["tagger"].items()},
    }


def markdown(result: Mapping[str, Any]) -> str:
    """Markdown tables: precision, recall and F1 of rules and tagger, F1 with wrong words, and F1 by book."""
    lines = [f"# Marks and capitals on {result['books']} unseen books", ""]
    lines += [
        "`python -m tutti_asr_lab.training.punctuation.evaluate build/punctuation --out loadtest/results/punctuation`",
        "",
    ]
    lines += ["| | wanted | rules P | R | F1 | tagger P | R | F1 |", "|---|" + "---:|" * 7]
    rules, tagger = result["pooled"]["rules"], result["pooled"]["tagger"]
    for name in LABELS:
        cells = [f"{one[name][rate]:.3f}" for one in (rules, tagger) for rate in ("precision", "recall", "f1")]
        lines.append(f"| {name} | {tagger[name]['wanted']:,} | {' | '.join(cells)} |")
    lines += ["", "F1:", "", f"| | {' | '.join(LABELS)} |", "|---|" + "---:|" * len(LABELS)]
    rows = {**result["pooled"], **result["by_book"]}
    for name, one in rows.items():
        cells = [f"{one[label]['f1']:.3f}" for label in LABELS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"The first {WORDS:,} words of each book. A final of {TIMED_WORDS} words takes"]
    lines += [f"{result['ms_for_30_words']} ms (median, one core shared with other work)."]
    return "\n".join([*lines, ""])


def main() -> None:
    """Evaluate the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--out", type=Path, required=True, help="path without extension")
    options = parser.parse_args()
    result = evaluate(options.texts, options.weights)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    print(markdown(result))  # noqa: T201


if __name__ == "__main__":
    main()
