"""N-gram model of the labels (letters or phones) of the training texts, as a graph: their prior probability."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Context = tuple[int, ...]
BOUNDARY = 0  # before and after a sequence; 0 is CTC's blank, which is not a label
DISCOUNT = 0.5  # subtracted from each count for unseen labels; absolute discounting, Ney et al. 1994


@dataclass(frozen=True, slots=True)
class LabelGraph:
    """Graph whose states are contexts, which end with the label that led to them; state 0 is the beginning.

    `labels` (S,): label of each state; `ends` (S,): probability that the sequence ends there; arcs by `sources`,
    `targets` and `weights` (A,). The weights of a state's arcs and its end sum to at most 1.
    """

    labels: NDArray[np.int64]
    ends: NDArray[np.float32]
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]


def label_graph(sequences: Iterable[Sequence[int]], order: int, states: int) -> LabelGraph:
    """Graph of an n-gram of `order` with about `states` states, from sequences of labels 1, 2, …

    All contexts of one label are states, and the most frequent longer ones. A state has arcs only for labels that were
    seen after it, with interpolated probabilities: it is enough that the graph contains the training texts.
    Source: Povey et al. 2016, section 3.2.
    """
    seen: dict[Context, Counter[int]] = defaultdict(Counter)
    for sequence in sequences:
        padded = (BOUNDARY, *sequence, BOUNDARY)
        for at in range(1, len(padded)):
            for length in range(min(order - 1, at) + 1):
                seen[padded[at - length : at]][padded[at]] += 1
    contexts = _kept(seen, states)
    number = {context: index for index, context in enumerate(contexts)}
    probabilities = _Interpolated(seen)
    ends = np.zeros(len(contexts), np.float32)
    arcs: list[tuple[int, int, float]] = []
    for context, source in number.items():
        for label in sorted(seen[context]):
            likely = probabilities(context, label)
            if label == BOUNDARY:
                ends[source] = likely
                continue
            after = (*context, label)
            arcs.append((source, next(number[after[i:]] for i in range(len(after)) if after[i:] in number), likely))
    sources, targets, weights = zip(*arcs, strict=True)
    labels = np.array([context[-1] for context in contexts])
    return LabelGraph(labels, ends, np.array(sources), np.array(targets), np.array(weights, np.float32))


def _kept(seen: Mapping[Context, Counter[int]], states: int) -> list[Context]:
    """The beginning, contexts of one label, and the most frequent longer contexts whose suffixes are kept too."""
    single = sorted(context for context in seen if len(context) == 1)
    kept: set[Context] = set(single)
    longer = sorted((c for c in seen if len(c) > 1), key=lambda c: (-seen[c].total(), len(c), c))
    for context in longer[: max(0, states - len(single))]:
        if context[1:] in kept:
            kept.add(context)
    return [(BOUNDARY,), *sorted(kept - {(BOUNDARY,)}, key=lambda c: (len(c), c))]


class _Interpolated:
    """P(label | context), with absolute discounting, interpolated with shorter contexts."""

    def __init__(self, seen: Mapping[Context, Counter[int]]) -> None:
        self.seen = seen
        self.totals = {context: counts.total() for context, counts in seen.items()}

    def __call__(self, context: Context, label: int) -> float:
        counts = self.seen[context]
        total = self.totals[context]
        if not context:
            return counts[label] / total
        discounted = max(counts[label] - DISCOUNT, 0.0)
        return (discounted + DISCOUNT * len(counts) * self(context[1:], label)) / total
