"""Counters, gauges and histograms of the event loop export the same text as those of prometheus_client."""

from __future__ import annotations

from typing import Any

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
    for each in (count, known):
        for amount in (1.0, 2.5, 640):
            each.inc(amount)
        each.inc()
    assert generate_latest(ours) == generate_latest(theirs)


def test_labeled_counters_gauges_and_histograms(registries: Registries) -> None:
    ours, theirs = registries
    by = ["model"]
    metrics: list[tuple[Any, Any, Any]] = [
        (
            Histograms(ours, "x_seconds", "text", EDGES, "model").labels,
            Histogram("x_seconds", "text", by, buckets=EDGES, registry=theirs),
            "observe",
        ),
        (
            Counters(ours, "x_rows", "text", "model").labels,
            Counter("x_rows", "text", by, registry=theirs),
            "inc",
        ),
        (Gauges(ours, "x_depth", "text", "model").labels, Gauge("x_depth", "text", by, registry=theirs), "set"),
    ]
    for model, amount in (("a", 3.0), ("b", 4.0), ("a", 5.0)):
        for our_child, known, change in metrics:
            getattr(our_child(model), change)(amount)
            getattr(known.labels(model), change)(amount)
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
