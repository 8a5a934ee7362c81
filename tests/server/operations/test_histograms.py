"""Histograms export the same samples as those of prometheus_client."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from server.operations.loop_metrics import histogram, histograms

EDGES = (0.005, 0.1, 1.0, 30.0)
values = st.lists(st.one_of(st.sampled_from(EDGES), st.floats(0.0, 100.0)), max_size=40)


def samples(registry: CollectorRegistry, kind: str = "histogram") -> dict[tuple[str, str], float]:
    """Return every sample by name and labels, without Prometheus's creation times."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(s.name, str(sorted(s.labels.items()))): s.value for f in families if f.type == kind for s in f.samples}


@given(values, values)
def test_observe_and_observe_all_count_as_prometheus_client_does(single: list[float], many: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread = histogram(ours, "x_seconds", "text", EDGES)
    known = Histogram("x_seconds", "text", buckets=EDGES, registry=theirs)
    for value in single:
        spread.observe(value)
        known.observe(value)
    spread.observe_all(many)
    for value in many:
        known.observe(value)
    found, wanted = samples(ours), samples(theirs)
    assert found.keys() == wanted.keys()
    assert all(abs(found[key] - wanted[key]) < 1e-6 for key in wanted)
    assert spread.count == len(single) + len(many)


def test_a_label_has_a_histogram_for_each_value() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spreads = histograms(ours, "x_seconds", "text", EDGES, ("kind", ("interim", "final")))
    known = Histogram("x_seconds", "text", ["kind"], buckets=EDGES, registry=theirs)
    for kind, value in (("interim", 0.1), ("final", 2.0), ("final", 99.0)):
        spreads[kind].observe(value)
        known.labels(kind).observe(value)
    assert samples(ours) == samples(theirs)
