"""Confidence intervals of error rates, by resampling recordings.

Recordings of one speaker resemble each other, so for speakers outside the set the intervals are too narrow.
Without errors they are 0 to 0.
Source: Bisani and Ney 2004, Bootstrap estimates for confidence intervals in ASR performance evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.evaluation.scoring import Score, pooled, report

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
    found = report(pooled(scored))
    found |= intervals([score for _, score in scored])
    for name, figures in found["by_source"].items():
        figures.update(intervals([score for source, score in scored if source == name]))
    return found


def _limits(errors: NDArray[np.int64], lengths: NDArray[np.int64]) -> Interval:
    """Percentiles of errors / lengths, (R,) each; a resample without words has rate 0, as `Score.wer`."""
    rates = np.divide(errors, lengths, out=np.zeros(len(errors)), where=lengths > 0)
    outside = (1 - CONFIDENCE) / 2
    return [round(float(limit), 4) for limit in np.quantile(rates, [outside, 1 - outside])]
