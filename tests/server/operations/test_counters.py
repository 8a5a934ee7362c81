"""Counters and gauges export the same text as those of prometheus_client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from server.operations.loop_metrics import Counters, Gauges, counter


def test_a_counter_exports_what_prometheus_client_exports() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    count, known = counter(ours, "x_bytes", "text"), Counter("x_bytes", "text", registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
    for amount in (1.0, 2.5, 640):
        count.inc(amount)
        known.inc(amount)
    count.inc()
    known.inc()
    assert generate_latest(ours) == generate_latest(theirs)


def test_labeled_counters_and_gauges_export_what_prometheus_client_exports() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts, gauges = Counters(ours, "x_rows", "text", "model"), Gauges(ours, "x_depth", "text", "model")
    known = Counter("x_rows", "text", ["model"], registry=theirs)
    known_gauges = Gauge("x_depth", "text", ["model"], registry=theirs)
    for model, amount in (("a", 3.0), ("b", 4.0), ("a", 5.0)):
        counts.labels(model).inc(amount)
        known.labels(model).inc(amount)
        gauges.labels(model).set(amount)
        known_gauges.labels(model).set(amount)
    assert generate_latest(ours) == generate_latest(theirs)
