"""Figures of ends of turns: a policy is swept, as in LiveKit's eot-bench. Pure.

A silence of at least `HOLD_S` inside a turn is a hold, the one after it the end. A policy acts once the score has
reached its threshold, but not before its least delay, and at its timeout whatever the score. A hold is cut if the
policy acts within it; the delay of an end is the silence before the policy acts. The reported figures are the smallest
share of holds cut at a mean delay, and the smallest mean delay at a share of holds cut.
Source: https://github.com/livekit/eot-bench, "Policy Sweep and Operating Points".
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HOLD_S, LONGEST_HOLD_S = 0.2, 5.0
DELAYS_S = (0.3, 0.5, 0.8)  # mean delays at which the share of holds cut is reported
CUTS = (0.05, 0.1)  # shares of holds cut at which the mean delay is reported
LEAST_DELAYS_S = tuple(step / 50 for step in range(51))  # 0 to 1 s
TIMEOUTS_S = tuple(step / 20 for step in range(4, 41))  # 0.2 to 2 s
ROUNDING = 1e-9

Floats = NDArray[np.float64]
Firings = Mapping[float, Floats]
"""By threshold: the silence after which the score reached it in each span, (N,), infinite if it never did."""


@dataclass(frozen=True, slots=True)
class Span:
    """A silence from `at_s` of a recording; `length_s` None: the speaker has finished. `words`: in the turn so far."""

    recording: str
    group: str  # speaker, or recording where its source has one speaker
    part: str  # A: policies are tuned on it; B: held out
    at_s: float
    length_s: float | None
    words: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """When to act on a score."""

    threshold: float
    least_delay_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy does: mean delay of ends, and share of holds cut."""

    policy: Policy
    delay_s: float
    cut: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one score on one set of spans; None where no policy meets the condition."""

    cut_at_delay: Mapping[float, float | None]
    delay_at_cut: Mapping[float, float | None]


class SpanSet:
    """Spans with weights, in the order of the firings."""

    def __init__(self, spans: Sequence[Span], weights: Floats | None = None) -> None:
        """`weights` of the spans, (N,); None: equal ones."""
        self.spans = tuple(spans)
        self.lengths = np.array([np.inf if span.length_s is None else span.length_s for span in spans], np.float64)
        given = np.ones(len(self.spans)) if weights is None else weights
        self._ends = np.where(np.isinf(self.lengths), given, 0.0)
        self._holds = np.where((self.lengths >= HOLD_S) & (self.lengths <= LONGEST_HOLD_S), given, 0.0)

    def chosen(self, wanted: NDArray[np.bool_]) -> SpanSet:
        """The same spans with those that are not wanted at weight 0."""
        return SpanSet(self.spans, wanted.astype(np.float64))

    def part(self, part: str) -> SpanSet:
        """The same spans with those of other parts at weight 0."""
        return self.chosen(np.array([span.part == part for span in self.spans], bool))

    def drawn(self, times: Floats) -> SpanSet:
        """The same spans with weights multiplied, (N,)."""
        return SpanSet(self.spans, (self._ends + self._holds) * times)

    def of_equal_length(self) -> SpanSet:
        """The same spans weighted so that ends and holds have the same numbers of words: pairs of equal length."""
        ends = Counter(span.words for span, weight in zip(self.spans, self._ends, strict=True) if weight)
        holds = Counter(span.words for span, weight in zip(self.spans, self._holds, strict=True) if weight)
        pairs = {words: min(ends[words], holds[words]) for words in ends}
        of_end = [pairs.get(span.words, 0) / max(ends[span.words], 1) for span in self.spans]
        of_hold = [pairs.get(span.words, 0) / max(holds[span.words], 1) for span in self.spans]
        weights = np.where(self._ends > 0, of_end, np.where(self._holds > 0, of_hold, 0.0))
        return SpanSet(self.spans, weights)

    @property
    def sizes(self) -> tuple[float, float]:
        """Weights of ends and of holds: their numbers, if all weights are 1."""
        return float(self._ends.sum()), float(self._holds.sum())

    def outcome(self, policy: Policy, firings: Firings) -> Outcome:
        """Apply one policy."""
        timeouts = np.array([policy.timeout_s])
        delays, cuts = self._outcomes(np.maximum(firings[policy.threshold], policy.least_delay_s), timeouts)
        return Outcome(policy, float(delays[0]), float(cuts[0]))

    def sweep(self, firings: Firings) -> list[Outcome]:
        """Apply every policy of the grid."""
        found = list[Outcome]()
        for threshold, least_s in itertools.product(firings, LEAST_DELAYS_S):
            timeouts_s = [timeout_s for timeout_s in TIMEOUTS_S if timeout_s >= least_s]
            delays, cuts = self._outcomes(np.maximum(firings[threshold], least_s), np.array(timeouts_s))
            each = zip(timeouts_s, delays.tolist(), cuts.tolist(), strict=True)
            found += [Outcome(Policy(threshold, least_s, timeout_s), d, cut) for timeout_s, d, cut in each]
        return found

    def _outcomes(self, fired: Floats, timeouts_s: Floats) -> tuple[Floats, Floats]:
        """Return mean delays and shares cut, (T,) each, of acting when fired, (N,), or at the timeouts, (T,)."""
        acts = np.minimum(fired, timeouts_s[:, None])  # (T, N)
        ends, holds = self.sizes
        cuts = (acts < self.lengths - ROUNDING) @ self._holds / max(holds, ROUNDING)
        return acts @ self._ends / max(ends, ROUNDING), cuts


def least_cut(outcomes: Sequence[Outcome], delay_s: float) -> Outcome | None:
    """Return the outcome with the fewest holds cut at this mean delay or less."""
    fitting = [outcome for outcome in outcomes if outcome.delay_s <= delay_s + ROUNDING]
    return min(fitting, key=lambda outcome: (outcome.cut, outcome.delay_s), default=None)


def least_delay(outcomes: Sequence[Outcome], cut: float) -> Outcome | None:
    """Return the outcome with the smallest mean delay at this share of holds cut or less."""
    fitting = [outcome for outcome in outcomes if outcome.cut <= cut + ROUNDING]
    return min(fitting, key=lambda outcome: (outcome.delay_s, outcome.cut), default=None)


def frontier(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with fewer holds cut than all that are faster, by mean delay."""
    found, least = list[Outcome](), 2.0
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.delay_s, outcome.cut)):
        if outcome.cut < least:
            found.append(outcome)
            least = outcome.cut
    return found


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """Return the figures of a sweep: each is that of the best policy on the same spans."""
    cuts = {delay_s: least_cut(outcomes, delay_s) for delay_s in DELAYS_S}
    delays = {cut: least_delay(outcomes, cut) for cut in CUTS}
    return Figures(
        {delay_s: None if found is None else found.cut for delay_s, found in cuts.items()},
        {cut: None if found is None else found.delay_s for cut, found in delays.items()},
    )


def held_out(tuned: Sequence[Outcome], firings: Firings, spans: SpanSet) -> dict[float, Outcome | None]:
    """Return, by mean delay, what the best policy of other spans does on these."""
    chosen = {delay_s: least_cut(tuned, delay_s) for delay_s in DELAYS_S}
    return {d: None if best is None else spans.outcome(best.policy, firings) for d, best in chosen.items()}


def firings_of_words(spans: Sequence[Span]) -> Firings:
    """Return the firings of a score that knows nothing but the number of words so far: a control, no agent's score."""
    words = np.array([span.words for span in spans])
    return {float(least): np.where(words >= least, 0.0, np.inf) for least in sorted(set(words.tolist()))}


def area_under_curve(spans: Sequence[Span], score: Sequence[float]) -> float:
    """Return the probability that an end has a greater score than a hold; a tie counts half. One half without both."""
    ends = [s for s, span in zip(score, spans, strict=True) if span.length_s is None]
    holds = [s for s, span in zip(score, spans, strict=True) if span.length_s is not None and span.length_s >= HOLD_S]
    if not ends or not holds:
        return 0.5
    wins = np.sign(np.subtract.outer(np.array(ends, np.float64), np.array(holds, np.float64)))
    return float((wins + 1).mean() / 2)
