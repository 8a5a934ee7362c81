"""Figures of ends of turns: a policy is swept, as in LiveKit's eot-bench. Pure.

A silence of at least `HOLD_S` inside a turn is a hold, the one after it the end. A policy acts once the score has
reached its threshold, but not before its least delay, and at its timeout whatever the score. A hold is cut if the
policy acts within it; the delay of an end is the silence before the policy acts. The reported figures are the smallest
share of holds cut at a mean delay, and the smallest mean delay at a share of holds cut.

Source: https://github.com/livekit/eot-bench, "Policy Sweep and Operating Points".
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
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
    """A silence from `at_s` of a recording; `length_s` None: the speaker has finished."""

    part: str  # A: policies are tuned on it; B: held out
    at_s: float
    length_s: float | None


class TurnPolicy(msgspec.Struct, frozen=True):
    """When to act on a score, and what that does: mean delay of ends, and share of holds cut."""

    threshold: float
    least_delay_s: float
    timeout_s: float
    delay_s: float
    cut: float


class TurnFigures(msgspec.Struct, frozen=True):
    """Figures of one set of spans: each that of the best policy on the same spans, None if none meets the condition."""

    ends: int
    holds: int
    cut_at_delay: dict[float, float | None]
    delay_s_at_cut: dict[float, float | None]


class Curve(msgspec.Struct, frozen=True):
    """The figures of a score on all spans and on the held-out part.

    `held_out` are the policies that were chosen on part A for a mean delay, applied to part B: figures that a user can
    expect, without knowing the best policy in advance.
    """

    all: TurnFigures
    part_b: TurnFigures
    held_out: dict[float, TurnPolicy | None]


class SpanSet:
    """Spans in the order of the firings, of which those of one part count, by default all."""

    def __init__(self, spans: Sequence[Span], part: str | None = None) -> None:
        self.lengths = np.array([np.inf if span.length_s is None else span.length_s for span in spans], np.float64)
        counted = np.array([part in (None, span.part) for span in spans], np.float64)
        self._ends = np.where(np.isinf(self.lengths), counted, 0.0)
        self._holds = np.where((self.lengths >= HOLD_S) & (self.lengths <= LONGEST_HOLD_S), counted, 0.0)
        self.sizes = int(self._ends.sum()), int(self._holds.sum())
        """Numbers of ends and of holds."""

    def sweep(self, firings: Firings) -> list[TurnPolicy]:
        """Apply every policy of the grid."""
        outcomes = list[TurnPolicy]()
        for threshold, least_s in itertools.product(firings, LEAST_DELAYS_S):
            outcomes += self.apply(threshold, least_s, [s for s in TIMEOUTS_S if s >= least_s], firings)
        return outcomes

    def apply(
        self, threshold: float, least_s: float, timeouts_s: Sequence[float], firings: Firings
    ) -> list[TurnPolicy]:
        """Apply the policies of a threshold and a least delay with these timeouts."""
        acts = np.minimum(np.maximum(firings[threshold], least_s), np.array(timeouts_s)[:, None])  # (T, N)
        ends, holds = self.sizes
        cuts = (acts < self.lengths - ROUNDING) @ self._holds / max(holds, 1)
        delays = acts @ self._ends / max(ends, 1)
        by_timeout = zip(timeouts_s, delays.tolist(), cuts.tolist(), strict=True)
        return [TurnPolicy(threshold, least_s, timeout_s, d, cut) for timeout_s, d, cut in by_timeout]

    def figures(self, firings: Firings) -> TurnFigures:
        """Return the figures of a sweep."""
        outcomes = self.sweep(firings)
        cuts = {delay_s: least_cut(outcomes, delay_s) for delay_s in DELAYS_S}
        delays = {cut: least_delay(outcomes, cut) for cut in CUTS}
        return TurnFigures(
            *self.sizes,
            {delay_s: None if best is None else best.cut for delay_s, best in cuts.items()},
            {cut: None if best is None else best.delay_s for cut, best in delays.items()},
        )


def least_cut(outcomes: Sequence[TurnPolicy], delay_s: float) -> TurnPolicy | None:
    """Return the outcome with the fewest holds cut at this mean delay or less."""
    fitting = [outcome for outcome in outcomes if outcome.delay_s <= delay_s + ROUNDING]
    return min(fitting, key=lambda outcome: (outcome.cut, outcome.delay_s), default=None)


def least_delay(outcomes: Sequence[TurnPolicy], cut: float) -> TurnPolicy | None:
    """Return the outcome with the smallest mean delay at this share of holds cut or less."""
    fitting = [outcome for outcome in outcomes if outcome.cut <= cut + ROUNDING]
    return min(fitting, key=lambda outcome: (outcome.delay_s, outcome.cut), default=None)


def curve(spans: Sequence[Span], firings: Firings) -> Curve:
    """Measure one score."""
    tuned, held = SpanSet(spans, "A").sweep(firings), SpanSet(spans, "B")
    chosen = {delay_s: least_cut(tuned, delay_s) for delay_s in DELAYS_S}
    held_out = {
        delay_s: None if best is None else held.apply(best.threshold, best.least_delay_s, [best.timeout_s], firings)[0]
        for delay_s, best in chosen.items()
    }
    return Curve(SpanSet(spans).figures(firings), held.figures(firings), held_out)
