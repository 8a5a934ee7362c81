"""The tables of docs/sizing.md are current, and say what `tutti plan` says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batching.batcher import Policy
from tutti_asr_lab.planning import sizing
from tutti_asr_lab.simulation.calibration import shipped
from tutti_asr_lab.simulation.planning import Serving, plan, run_load


def test_the_tables_of_the_page_are_current() -> None:
    page = sizing.PAGE.read_text(encoding="utf-8")
    assert sizing.with_tables(page) == page, "run: python -m tutti_asr_lab.planning.sizing"


def test_replicas_are_those_of_the_plan() -> None:
    found = plan(shipped(), Serving(), streams=4_000, slo_s=sizing.SLO_S, headroom=sizing.HEADROOM)
    assert found is not None
    [row] = [line for line in sizing.table() if line.startswith("| 4,000 mono |")]
    assert f"| {found.replicas} + 1 |" in row


def test_a_page_without_a_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="table of calls"):
        sizing.with_tables("no table")


def test_deadline_trades_latency_for_processor_time_at_low_load() -> None:
    eager, deadline = (
        run_load(shipped(), replace(Serving(), policy=policy), 25) for policy in (Policy.EAGER, Policy.DEADLINE)
    )
    assert deadline.model_busy + deadline.loop_busy < eager.model_busy + eager.loop_busy
    assert eager.latency_ms is not None
    assert deadline.latency_ms is not None
    assert deadline.latency_ms.p98 > eager.latency_ms.p98
