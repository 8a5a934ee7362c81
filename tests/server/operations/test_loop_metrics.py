"""Counters, gauges and histograms of the event loop export the same text as those of prometheus_client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from server.operations.loop_metrics import Counters, Gauges, Histograms, counter, histogram

EDGES = (0.25, 0.5, 1.0, 30.0)
VALUES = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 100).map(float)), max_size=40)
Registries = tuple[CollectorRegistry, CollectorRegistry]


@pytest.fixture
def registries() -> Registries:
    """One for our metrics, and one for theirs."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry(), CollectorRegistry()


def test_a_counter(registries: Registries) -> None:
    ours, theirs = registries
    count, known = counter(ours, "x_bytes", "text"), Counter("x_bytes", "text", registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
    for amount in (1.0, 2.5, 640):
        count.value += amount
        known.inc(amount)
    assert generate_latest(ours) == generate_latest(theirs)


def test_labeled_counters_gauges_and_histograms(registries: Registries) -> None:
    ours, theirs = registries
    spreads = Histograms(ours, "x_seconds", "text", EDGES, "model")
    counts, gauges = Counters(ours, "x_rows", "text", "model"), Gauges(ours, "x_depth", "text", "model")
    known_spreads = Histogram("x_seconds", "text", ["model"], buckets=EDGES, registry=theirs)
    known_counts = Counter("x_rows", "text", ["model"], registry=theirs)
    known_gauges = Gauge("x_depth", "text", ["model"], registry=theirs)
    for model, amount in (("a", 3.0), ("b", 4.0), ("a", 5.0)):
        spreads.labels(model).observe(amount)
        known_spreads.labels(model).observe(amount)
        counts.labels(model).value += amount
        known_counts.labels(model).inc(amount)
        gauges.labels(model).value = amount
        known_gauges.labels(model).set(amount)
    assert generate_latest(ours) == generate_latest(theirs)


@given(VALUES, VALUES)
def test_a_histogram_of_single_values_and_of_several_at_once(single: list[float], many: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread = histogram(ours, "x_seconds", "text", EDGES)
    known = Histogram("x_seconds", "text", buckets=EDGES, registry=theirs)
    for value in single:
        spread.observe(value)
    spread.observe_all(many)
    for value in (*single, *many):
        known.observe(value)
    assert [line.split(" ") for line in generate_latest(ours).decode().splitlines()] == [
        line.split(" ") for line in generate_latest(theirs).decode().splitlines() if "_created" not in line
    ]
    assert spread.count == len(single) + len(many)
