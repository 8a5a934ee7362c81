"""Metrics of several processes as those of one service: snapshots, their sum, and the Prometheus text.

Each process encodes its own families, one process adds them up. Counters and histograms are summed by labels, gauges
combined as `metrics.GAUGES` says. With one model (453 series) a snapshot takes 1.0 ms of processor time, the text of
eight processes 4.4, and that of one process by `generate_latest` 2.5 (AMD EPYC).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from server.operations.metrics import GAUGES, Combine

Labels = tuple[tuple[str, str], ...]
SUMMED = ("counter", "histogram")  # types whose values never fall, so that those of ended processes are kept


class _Sample(msgspec.Struct, array_like=True, frozen=True):
    """One series: its name has the suffix of its type, such as `_total`."""

    name: str
    labels: Labels
    value: float


class _Family(msgspec.Struct, array_like=True, frozen=True):
    """One metric with its series, without timestamps and exemplars, which the server's metrics do not have."""

    name: str
    text: str
    kind: str
    samples: list[_Sample]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Family])


def snapshot(registry: Collector) -> bytes:
    """Return all metrics of this process for `Totals`, as msgpack. Call it where `/metrics` is answered."""
    families = [
        _Family(
            family.name,
            family.documentation,
            family.type,
            [_Sample(sample.name, tuple(sample.labels.items()), float(sample.value)) for sample in family.samples],
        )
        for family in registry.collect()
    ]
    return _encoder.encode(families)


class Totals:
    """The metrics of all processes of a service, including what processes that ended had counted.

    It keeps the last snapshot of each process, so no counter falls when one ends, is replaced, or answers too late to
    be in an exposition. Processes are known by numbers that are never given twice; a process id may be.
    """

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}
        self._ended = _Service()
        self._ended_processes: set[int] = set()

    def take(self, process: int, content: bytes) -> None:
        """Replace the snapshot of a process; without effect after its end."""
        if process not in self._ended_processes:
            self._last[process] = content

    def end(self, process: int) -> None:
        """Keep the counters and histograms of a process that ended, not its gauges. Raises: msgspec.DecodeError."""
        self._ended_processes.add(process)
        content = self._last.pop(process, None)
        if content is not None:
            self._ended.add(family for family in _decoder.decode(content) if family.kind in SUMMED)

    def exposition(self) -> bytes:
        """Return the Prometheus text of the service. Raises: msgspec.DecodeError."""
        service = _Service()
        for content in self._last.values():
            service.add(_decoder.decode(content))
        service.add(self._ended.families())
        return generate_latest(service)


@dataclass(slots=True)
class _Merged:
    """One metric of the service: its values by series name and labels."""

    name: str
    text: str
    kind: str
    values: dict[tuple[str, Labels], float]

    def add(self, samples: Iterable[_Sample]) -> None:
        """Combine the series of another process with these."""
        how = GAUGES.get(self.name, Combine.SUM) if self.kind == "gauge" else Combine.SUM
        values = self.values
        if how is Combine.SUM:
            for sample in samples:
                key = (sample.name, sample.labels)
                values[key] = values.get(key, 0.0) + sample.value
        elif how is not Combine.ONE or not values:
            choose = _CHOOSE[how]
            for sample in samples:
                key = (sample.name, sample.labels)
                values[key] = choose(values.get(key, sample.value), sample.value)


_CHOOSE: dict[Combine, Callable[[float, float], float]] = {
    Combine.LARGEST: max,
    Combine.SMALLEST: min,
    Combine.ONE: lambda first, _: first,
}


class _Service(Collector):
    """Families of several processes, added up."""

    def __init__(self) -> None:
        self._families: dict[str, _Merged] = {}

    def add(self, families: Iterable[_Family]) -> None:
        """Add the families of one process."""
        for family in families:
            known = self._families.get(family.name)
            if known is None:
                known = self._families[family.name] = _Merged(family.name, family.text, family.kind, {})
            known.add(family.samples)

    def families(self) -> Iterable[_Family]:
        """Return the families as if they were those of one process."""
        for family in self._families.values():
            samples = [_Sample(name, labels, value) for (name, labels), value in family.values.items()]
            yield _Family(family.name, family.text, family.kind, samples)

    def collect(self) -> Iterable[Metric]:
        for family in self._families.values():
            metric = Metric(family.name, family.text, family.kind)
            for (name, labels), value in family.values.items():
                metric.add_sample(name, dict(labels), value)
            yield metric
