"""Report of ends of turns: curves of one or more scores, and what one gains over another, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from loadtest.measurement.plot import picture
from loadtest.rulers.turns.policies import (
    CUTS,
    DELAYS_S,
    ROUNDING,
    Firings,
    Floats,
    Outcome,
    Policy,
    SpanSet,
    figures,
    frontier,
    held_out,
    least_cut,
)

RESAMPLES, SEED = 400, 1
CONFIDENCE = 0.9


class Point(msgspec.Struct, frozen=True):
    """A policy and what it does; shares from 0 to 1, times in ms."""

    threshold: float
    least_delay_ms: int
    timeout_ms: int
    delay_ms: int
    cut: float


class Figures(msgspec.Struct, frozen=True):
    """Figures of one set of spans: each that of the best policy on the same spans."""

    ends: float
    holds: float
    cut_at_delay_ms: dict[int, float | None]
    delay_ms_at_cut: dict[float, int | None]


class Curve(msgspec.Struct, frozen=True):
    """The figures of a score on all spans, on the held-out part, and on pairs with equally many words.

    `held_out` are the policies that were chosen on part A for a mean delay, applied to part B: figures that a user can
    expect, without knowing the best policy in advance. `frontier`: mean delays in ms and shares of all holds cut, of
    the policies that no faster one beats.
    """

    name: str
    all: Figures
    part_b: Figures
    equal_words: Figures
    held_out: dict[int, Point | None]
    frontier: tuple[tuple[int, float], ...]


class Gain(msgspec.Struct, frozen=True):
    """Share of cut holds that a score removes, with an interval; shares cut and mean delays before and after."""

    removed: float
    interval: tuple[float, float]
    cut: tuple[float, float]
    delay_ms: tuple[int, int]


def curve(name: str, spans: SpanSet, firings: Firings) -> Curve:
    """Measure one score."""
    tuned = spans.part("A").sweep(firings)
    chosen = held_out(tuned, firings, spans.part("B"))
    return Curve(
        name,
        _figures(spans, firings),
        _figures(spans.part("B"), firings),
        _figures(spans.of_equal_length(), firings),
        {_ms(delay_s): None if found is None else _point(found) for delay_s, found in chosen.items()},
        tuple((_ms(each.delay_s), round(each.cut, 4)) for each in frontier(spans.sweep(firings))),
    )


class Fold(NamedTuple):
    """Two scores that were fitted to one part of the spans, to be compared on the other."""

    tuned: SpanSet
    held: SpanSet
    before: Firings
    after: Firings


def compared(folds: Sequence[Fold]) -> dict[int, Gain]:
    """Return by mean delay, in ms, the share of cut holds that the second score removes on held-out parts.

    Policies are the best of each score on the part that it was fitted to. Speakers are drawn for the interval.
    """
    sweeps = [(fold.tuned.sweep(fold.before), fold.tuned.sweep(fold.after)) for fold in folds]
    groups = np.array([span.group for span in folds[0].held.spans])
    draws = np.random.default_rng(SEED)
    names = np.unique(groups)
    weights = [_drawn(groups, names[draws.integers(len(names), size=len(names))]) for _ in range(RESAMPLES)]
    found = dict[int, Gain]()
    for delay_s in DELAYS_S:
        chosen = [(least_cut(before, delay_s), least_cut(after, delay_s)) for before, after in sweeps]
        policies = [(old.policy, new.policy) for old, new in chosen if old is not None and new is not None]
        if len(policies) == len(folds):
            found[_ms(delay_s)] = _gain(folds, policies, weights)
    return found


def _gain(folds: Sequence[Fold], policies: Sequence[tuple[Policy, Policy]], weights: Sequence[Floats]) -> Gain:
    def outcomes(drawn: Floats | None) -> tuple[Outcome, Outcome]:
        """Return the outcomes of both scores on all held-out spans."""
        held = [fold.held if drawn is None else fold.held.drawn(drawn) for fold in folds]
        by_fold = zip(folds, held, policies, strict=True)
        each = [(spans.outcome(old, f.before), spans.outcome(new, f.after)) for f, spans, (old, new) in by_fold]
        return _pooled([old for old, _ in each], held), _pooled([new for _, new in each], held)

    before, after = outcomes(None)
    removed = [_removed(*outcomes(drawn)) for drawn in weights]
    limits = np.quantile(removed, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Gain(
        round(_removed(before, after), 3),
        (round(float(limits[0]), 3), round(float(limits[1]), 3)),
        (round(before.cut, 4), round(after.cut, 4)),
        (_ms(before.delay_s), _ms(after.delay_s)),
    )


def _pooled(outcomes: Sequence[Outcome], held: Sequence[SpanSet]) -> Outcome:
    """Return the outcome on several sets of spans together."""
    ends, holds = (np.array([spans.sizes[which] for spans in held]) for which in (0, 1))
    delays, cuts = np.array([outcome.delay_s for outcome in outcomes]), np.array([outcome.cut for outcome in outcomes])
    delay_s = float(delays @ ends) / max(float(ends.sum()), ROUNDING)
    return Outcome(outcomes[0].policy, delay_s, float(cuts @ holds) / max(float(holds.sum()), ROUNDING))


def draw_curves(curves: Sequence[Curve], path: Path) -> None:
    """Plot the share of holds cut against the mean delay, a line for each score."""
    with picture(path, 1, 1, (6.4, 4.0)) as (axes,):
        for each in curves:
            delays_ms, cuts = zip(*each.frontier, strict=True)
            axes.step(delays_ms, [100 * cut for cut in cuts], where="post", label=each.name)
        axes.set(
            xlabel="mean delay after the end of a turn, ms", ylabel="holds cut, %", xlim=(200, 1_200), ylim=(0, None)
        )


def print_curves(curves: Sequence[Curve], console: Console) -> None:
    """Print a table: a row for each score and set of spans."""
    table = Table()
    for heading in ("score", "spans", "ends", "holds"):
        table.add_column(heading, justify="left" if heading in ("score", "spans") else "right")
    for delay_s in DELAYS_S:
        table.add_column(f"cut at {_ms(delay_s)} ms", justify="right")
    for cut in CUTS:
        table.add_column(f"delay at {cut:.0%} cut", justify="right")
    for each in curves:
        for name, found in (("all", each.all), ("part B", each.part_b), ("equal words", each.equal_words)):
            table.add_row(each.name, name, f"{found.ends:.0f}", f"{found.holds:.0f}", *_cells(found))
        chosen = [_held_cell(point) for point in each.held_out.values()]
        table.add_row(each.name, "part B, tuned on A", "", "", *chosen, *("" for _ in CUTS))
    console.print(table)


def _cells(found: Figures) -> list[str]:
    cuts = ["–" if cut is None else f"{cut:.1%}" for cut in found.cut_at_delay_ms.values()]
    return cuts + ["–" if ms is None else f"{ms} ms" for ms in found.delay_ms_at_cut.values()]


def _held_cell(point: Point | None) -> str:
    return "–" if point is None else f"{point.cut:.1%} ({point.delay_ms} ms)"


def _figures(spans: SpanSet, firings: Firings) -> Figures:
    found, (ends, holds) = figures(spans.sweep(firings)), spans.sizes
    cuts: Mapping[float, float | None] = found.cut_at_delay
    return Figures(
        round(ends, 1),
        round(holds, 1),
        {_ms(delay_s): None if cut is None else round(cut, 4) for delay_s, cut in cuts.items()},
        {cut: None if delay_s is None else _ms(delay_s) for cut, delay_s in found.delay_at_cut.items()},
    )


def _point(outcome: Outcome) -> Point:
    policy = outcome.policy
    return Point(
        policy.threshold,
        _ms(policy.least_delay_s),
        _ms(policy.timeout_s),
        _ms(outcome.delay_s),
        round(outcome.cut, 4),
    )


def _removed(before: Outcome, after: Outcome) -> float:
    return 1.0 - after.cut / before.cut if before.cut else 0.0


def _drawn(groups: NDArray[np.str_], names: NDArray[np.str_]) -> NDArray[np.float64]:
    """Return how often the group of each span was drawn, (N,)."""
    found, times = np.unique(names, return_counts=True)
    counts = dict(zip(found.tolist(), times.tolist(), strict=True))
    return np.array([counts.get(group, 0) for group in groups.tolist()], np.float64)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
