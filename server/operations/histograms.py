"""Histograms for the event loop: plain numbers while audio flows, Prometheus families when `/metrics` is read.

prometheus_client takes a lock for each value and walks the buckets in Python. These histograms belong to one thread,
the event loop's, which also answers `/metrics`: 0.15 µs a value instead of 0.7.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Spread:
    """Values counted by bucket, and their sum."""

    __slots__ = ("_counts", "_edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` are upper bounds of buckets, ascending; an unbounded bucket is added."""
        self._edges = list(edges)
        self._counts = [0] * (len(edges) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Number of values so far."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count several values: one for each row of a batch."""
        edges, counts = self._edges, self._counts
        for value in values:
            counts[bisect_left(edges, value)] += 1
        self.total += sum(values)

    def cumulated(self) -> list[tuple[str, float]]:
        """Each edge, as Prometheus writes it, with the number of values at or below it."""
        reached, pairs = 0, []
        for edge, count in zip([*self._edges, math.inf], self._counts, strict=True):
            reached += count
            pairs.append((floatToGoString(edge), float(reached)))  # type: ignore[no-untyped-call]
        return pairs


class _Family(Collector):
    """Prometheus family of one name: a histogram for each value of `label`, or a single one without a label."""

    def __init__(self, name: str, text: str, label: str | None, spreads: Mapping[str, Spread]) -> None:
        """`spreads` may grow: a model that is added brings a label's new value."""
        self._name, self._text = name, text
        self._labels = [] if label is None else [label]
        self._spreads = spreads

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for value, spread in self._spreads.items():
            family.add_metric([value] if self._labels else [], spread.cumulated(), spread.total)
        return [family]


def histogram(registry: CollectorRegistry, name: str, text: str, edges: Sequence[float]) -> Spread:
    """Add a histogram to the registry."""
    spread = Spread(edges)
    registry.register(_Family(name, text, None, {"": spread}))
    return spread


def histograms(
    registry: CollectorRegistry, name: str, text: str, edges: Sequence[float], by: tuple[str, Sequence[str]]
) -> dict[str, Spread]:
    """Add a histogram for each value that a label can have; `by` is the label and its values."""
    label, values = by
    spreads = {value: Spread(edges) for value in values}
    registry.register(_Family(name, text, label, spreads))
    return spreads


class Histograms:
    """One histogram for each value of a label, added when the value comes up first."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, edges: Sequence[float], label: str) -> None:
        self._edges = edges
        self._spreads: dict[str, Spread] = {}
        registry.register(_Family(name, text, label, self._spreads))

    def labels(self, value: str) -> Spread:
        """Return the histogram of a value."""
        return self._spreads.setdefault(value, Spread(self._edges))
