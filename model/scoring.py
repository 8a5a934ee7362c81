"""Word and character error rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def edit_distance(reference: Sequence[object], hypothesis: Sequence[object]) -> int:
    """Levenshtein distance: substitutions, deletions and insertions, one each."""
    row = list(range(len(hypothesis) + 1))
    for i, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, found in enumerate(hypothesis, 1):
            cost = diagonal if expected == found else 1 + min(diagonal, row[j], row[j - 1])
            diagonal, row[j] = row[j], cost
    return row[-1]


@dataclass(frozen=True, slots=True)
class Score:
    """Errors and reference lengths, addable over utterances."""

    word_errors: int = 0
    words: int = 0
    character_errors: int = 0
    characters: int = 0
    utterances: int = 0

    def __add__(self, other: Score) -> Score:
        """Pool two scores."""
        return Score(
            self.word_errors + other.word_errors,
            self.words + other.words,
            self.character_errors + other.character_errors,
            self.characters + other.characters,
            self.utterances + other.utterances,
        )

    @property
    def wer(self) -> float:
        """Word error rate; 0 where there is no reference word."""
        return self.word_errors / self.words if self.words else 0.0

    @property
    def cer(self) -> float:
        """Character error rate, spaces counted as characters."""
        return self.character_errors / self.characters if self.characters else 0.0


def score(reference: str, hypothesis: str) -> Score:
    """Score one utterance; white space is folded."""
    expected, found = reference.split(), hypothesis.split()
    left, right = " ".join(expected), " ".join(found)
    return Score(edit_distance(expected, found), len(expected), edit_distance(left, right), len(left), 1)


def by_source(rows: Iterable[tuple[str, str, str]]) -> dict[str, Score]:
    """Pool (source, reference, hypothesis) rows by source, sorted by name."""
    totals: dict[str, Score] = {}
    for source, reference, hypothesis in rows:
        totals[source] = totals.get(source, Score()) + score(reference, hypothesis)
    return dict(sorted(totals.items()))


def report(sources: dict[str, Score]) -> dict[str, object]:
    """JSON-ready figures: pooled and by source, rounded to 1e-4."""
    total = sum(sources.values(), Score())
    return {
        "wer": round(total.wer, 4),
        "cer": round(total.cer, 4),
        "utterances": total.utterances,
        "by_source": {
            name: {"wer": round(s.wer, 4), "cer": round(s.cer, 4), "utterances": s.utterances}
            for name, s in sources.items()
        },
    }
