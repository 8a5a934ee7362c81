"""Counts of marks, the splitting of a book into finals, and the figures quoted in documents."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from model.errors import TrainingError
from model.punctuation.marks import ENDS, parse, written
from model.punctuation.weights import SHIPPED
from tutti_asr_lab.training.punctuation.evaluate import (
    LABELS,
    LONGEST,
    Counts,
    by_rules,
    evaluate,
    finals,
    markdown,
    with_word_errors,
)

ROOT = Path(__file__).parents[4]
RESULT = ROOT / "loadtest" / "results" / "punctuation"
LIMIT_BYTES = 3_000_000  # of the weights, which are part of every installation


def test_marks_of_the_reference_and_of_the_tagger_are_counted() -> None:
    counts = Counts()
    counts.add(parse("Yes, he said. Is Paul here?"), parse("Yes he, said. Is paul here."))
    found = {name: (count.wanted, count.found, count.right) for name, count in counts.labels.items()}
    assert found == {
        "comma": (1, 1, 0),
        "period": (1, 2, 1),
        "question mark": (1, 0, 0),
        "period inside": (1, 1, 1),
        "question mark inside": (0, 0, 0),
        "capital": (3, 2, 2),
        "capital inside": (1, 0, 0),
    }
    assert counts.labels["period"].rates == {"precision": 0.5, "recall": 1.0, "f1": 0.6667, "wanted": 1}


def test_the_rules_are_the_baseline() -> None:
    assert written(by_rules(["where", "are", "you", "i", "am", "here"])) == "Where are you I am here?"


def test_finals_are_whole_sentences_and_complete() -> None:
    short = parse("Yes, he said. No. Is he here? " * 30)
    found = list(finals([*short, *parse("word " * LONGEST + "word. Short.")], np.random.default_rng(1)))
    assert all(final[-1].mark in ENDS and len(final) <= LONGEST for final in found)
    assert sum(len(final) for final in found) == len(short) + 1  # without the sentence that is too long


def test_simulated_errors_are_other_words_of_the_vocabulary() -> None:
    alphabet = ["had", "has", "hat", "hate", "have"]
    received: list[str] = []
    with_word_errors(alphabet, 0.5, lambda words: received.extend(words) or [])(["hat"] * 200)  # type: ignore[func-returns-value]
    assert set(received) <= set(alphabet)
    assert 100 < received.count("hat") < 150


def test_the_error_names_a_folder_without_books(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no books"):
        evaluate(tmp_path, SHIPPED)


def test_documents_quote_the_kept_figures_of_the_shipped_tagger() -> None:
    result = json.loads(RESULT.with_suffix(".json").read_text())
    page = markdown(result)
    assert RESULT.with_suffix(".md").read_text() == page
    digest = hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    assert result["sha256"] == digest
    assert f"{digest}  {SHIPPED.name}" in (SHIPPED.parent / "SHA256SUMS").read_text()
    assert len(result["by_book"]) == 20
    table = [line for line in page.splitlines() if line.startswith(tuple(f"| {name} |" for name in LABELS))]
    for document in (ROOT / "docs" / "measured.md", ROOT / "model" / "weights" / "PUNCTUATION.md"):
        text = document.read_text()
        assert all(line in text for line in table), document
    assert digest in (ROOT / "model" / "weights" / "PUNCTUATION.md").read_text()


def test_the_shipped_tagger_is_small() -> None:
    assert SHIPPED.stat().st_size <= LIMIT_BYTES
