"""Measurement of a served engine: every step of the feeding process is answered."""

from __future__ import annotations

from loadtest.benchmarks.engine_python import IdleModel
from loadtest.benchmarks.engine_served import measure


def test_every_step_is_answered_and_costs_time() -> None:
    found = measure(IdleModel(16, 8), streams=16, sockets=2, seconds=2.0)
    assert 0.5 < found["answered"] <= 1.0
    assert found["us_per_row"] > 0
    assert found["rows_per_s"] > 50
