"""Counters and gauges for the event loop: plain numbers while streams run, Prometheus families when `/metrics` is read.

prometheus_client takes a lock for each change, 0.5 µs; these take 0.05. They are changed only on the event loop, which
also answers `/metrics`. Metrics that change once a stream, or on other threads, are those of prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, which is not negative."""
        self.value += amount


class Reading:
    """The latest value of a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value


class _Family(Collector):
    """Prometheus family: a number for each value of `label`, or a single one without a label."""

    def __init__(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        label: str | None,
        numbers: Mapping[str, Count | Reading],
    ) -> None:
        """`numbers` may grow, by new label values such as an added model."""
        self._family, self._name, self._text = family, name, text
        self._labels = [] if label is None else [label]
        self._numbers = numbers

    def collect(self) -> Iterable[Metric]:
        family = self._family(self._name, self._text, labels=self._labels)
        for value, number in self._numbers.items():
            family.add_metric([value] if self._labels else [], number.value)
        return [family]


def counter(registry: CollectorRegistry, name: str, text: str) -> Count:
    """Add a counter to the registry; its sample is called `name` and `_total`."""
    count = Count()
    registry.register(_Family(CounterMetricFamily, name, text, None, {"": count}))
    return count


class Counters:
    """One counter for each value of a label, added on first use."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, label: str) -> None:
        self._counts: dict[str, Count] = {}
        registry.register(_Family(CounterMetricFamily, name, text, label, self._counts))

    def labels(self, value: str) -> Count:
        """Return the counter of a label value."""
        return self._counts.setdefault(value, Count())


class Gauges:
    """One gauge for each value of a label, added on first use."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, label: str) -> None:
        self._readings: dict[str, Reading] = {}
        registry.register(_Family(GaugeMetricFamily, name, text, label, self._readings))

    def labels(self, value: str) -> Reading:
        """Return the gauge of a label value."""
        return self._readings.setdefault(value, Reading())
