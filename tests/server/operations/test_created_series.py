"""Series that `/metrics` omits."""

from __future__ import annotations

from server.operations.metrics import Metrics


def test_counters_have_no_created_series() -> None:
    metrics = Metrics(max_batch=4, max_streams=4)
    metrics.rejected.labels("capacity").inc()
    assert b"_created" not in metrics.exposition()
