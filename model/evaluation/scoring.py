"""Word and character error rates, and their confidence intervals by resampling recordings.

Recordings of one speaker resemble each other, so for speakers outside the set the intervals are too narrow.
Without errors they are 0 to 0.
Source: Bisani and Ney 2004, Bootstrap estimates for confidence intervals in ASR performance evaluation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.text.letters import has_ideographs


def edit_distance(reference: Sequence[object], hypothesis: Sequence[object]) -> int:
    """Levenshtein distance: substitutions, deletions and insertions cost 1 each."""
    row = list(range(len(hypothesis) + 1))
    for i, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, recognized in enumerate(hypothesis, 1):
            cost = diagonal if expected == recognized else 1 + min(diagonal, row[j], row[j - 1])
            diagonal, row[j] = row[j], cost
    return row[-1]


@dataclass(frozen=True, slots=True)
class Score:
    """Error counts and reference lengths, which add up over utterances."""

    word_errors: int = 0
    words: int = 0
    character_errors: int = 0
    characters: int = 0
    utterances: int = 0
    insertions: int = 0  # of words; the sum of these three is `word_errors`
    deletions: int = 0
    substitutions: int = 0

    def __add__(self, other: Score) -> Score:
        """Pool two scores."""
        return Score(*map(operator.add, astuple(self), astuple(other)))

    @property
    def wer(self) -> float:
        """Word error rate; 0 without reference words."""
        return self.word_errors / self.words if self.words else 0.0

    @property
    def cer(self) -> float:
        """Character error rate; spaces count as characters."""
        return self.character_errors / self.characters if self.characters else 0.0


def score(reference: str, hypothesis: str) -> Score:
    """Score one utterance, ignoring differences in white space. In a Chinese reference each character is a word."""
    if has_ideographs(reference):
        from model.text.chinese import characters_of

        left, right = characters_of(reference), characters_of(hypothesis)
        kinds = _kinds(left, right)
        errors = sum(kinds)
        return Score(errors, len(left), errors, len(left), 1, *kinds)
    expected, recognized = reference.split(), hypothesis.split()
    left, right = " ".join(expected), " ".join(recognized)
    kinds = _kinds(expected, recognized)
    return Score(sum(kinds), len(expected), edit_distance(left, right), len(left), 1, *kinds)


def _kinds(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int]:
    """Insertions, deletions and substitutions along one cheapest alignment."""
    pairs = aligned(reference, hypothesis)
    inserted = sum(left is None for left, _ in pairs)
    deleted = sum(right is None for _, right in pairs)
    return inserted, deleted, sum(left != right for left, right in pairs) - inserted - deleted


def by_source(rows: Iterable[tuple[str, str, str]]) -> dict[str, Score]:
    """Score (source, reference, hypothesis) rows and pool them by source, sorted by name."""
    return pooled((source, score(reference, hypothesis)) for source, reference, hypothesis in rows)


def pooled(scored: Iterable[tuple[str, Score]]) -> dict[str, Score]:
    """Pool scores by source, sorted by name."""
    totals: dict[str, Score] = {}
    for source, one in scored:
        totals[source] = totals.get(source, Score()) + one
    return dict(sorted(totals.items()))


def report(sources: dict[str, Score]) -> dict[str, Any]:
    """JSON-ready figures: pooled and by source, rounded to 1e-4."""
    total = sum(sources.values(), Score())
    return {**_figures(total), "by_source": {name: _figures(one) for name, one in sources.items()}}


def _figures(score: Score) -> dict[str, float]:
    return {
        "wer": round(score.wer, 4),
        "cer": round(score.cer, 4),
        "utterances": score.utterances,
        "words": score.words,
        "insertions": score.insertions,
        "deletions": score.deletions,
        "substitutions": score.substitutions,
    }


def aligned(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Pairs of words along one cheapest alignment; None where the other side has no word."""
    rows = [list(range(len(hypothesis) + 1))]
    for i, expected in enumerate(reference, 1):
        row = [i]
        for j, recognized in enumerate(hypothesis, 1):
            row.append(min(rows[-1][j - 1] + (expected != recognized), rows[-1][j] + 1, row[-1] + 1))
        rows.append(row)
    pairs: list[tuple[str | None, str | None]] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        if i and j and rows[i][j] == rows[i - 1][j - 1] + (reference[i - 1] != hypothesis[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((reference[i], hypothesis[j]))
        elif i and rows[i][j] == rows[i - 1][j] + 1:
            i -= 1
            pairs.append((reference[i], None))
        else:
            j -= 1
            pairs.append((None, hypothesis[j]))
    return pairs[::-1]


CONFIDENCE = 0.95
RESAMPLES = 1_000
SEED = 1
FACTS = {"confidence": CONFIDENCE, "resamples": RESAMPLES, "seed": SEED}

Interval = list[float]
"""Lower and upper limit, rounded to 1e-4."""


def intervals(scores: Sequence[Score]) -> dict[str, Interval | None]:
    """Return intervals of word and character error rate, `wer_interval` and `cer_interval`.

    None for fewer than two recordings. The same scores in the same order give the same intervals.
    """
    if len(scores) < 2:
        return {"wer_interval": None, "cer_interval": None}
    counts = np.array([(s.word_errors, s.words, s.character_errors, s.characters) for s in scores], np.int64)  # (N, 4)
    drawn = np.random.default_rng(SEED)
    sums = np.stack([counts[drawn.integers(len(counts), size=len(counts))].sum(axis=0) for _ in range(RESAMPLES)])
    return {"wer_interval": _limits(sums[:, 0], sums[:, 1]), "cer_interval": _limits(sums[:, 2], sums[:, 3])}


def report_with_intervals(scored: Sequence[tuple[str, Score]]) -> dict[str, Any]:
    """JSON-ready figures of (source, score) of each recording: `report`, each error rate with its interval."""
    whole = report(pooled(scored))
    whole |= intervals([score for _, score in scored])
    for name, figures in whole["by_source"].items():
        figures.update(intervals([score for source, score in scored if source == name]))
    return whole


def _limits(errors: NDArray[np.int64], lengths: NDArray[np.int64]) -> Interval:
    """Percentiles of errors / lengths, (R,) each; a resample without words has rate 0, as `Score.wer`."""
    rates = np.divide(errors, lengths, out=np.zeros(len(errors)), where=lengths > 0)
    outside = (1 - CONFIDENCE) / 2
    return [round(float(limit), 4) for limit in np.quantile(rates, [outside, 1 - outside])]
