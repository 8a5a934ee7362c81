"""What forks cost: a level without and one with them, on a real server."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import typer

from loadtest.benchmarks import forks


def test_only_streams_with_early_ends_are_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forks"])
    with pytest.raises(typer.Exit):
        forks.main(streams=8, seconds=6.0, rounds=1, folder=tmp_path)
    found = msgspec.json.decode((tmp_path / "forks.json").read_bytes(), type=forks.ForkCosts)
    plain, forked = found.levels
    assert (plain.forks, plain.forks_a_minute) == (False, 0)
    assert forked.forks
    assert forked.forks_a_minute > 0
    assert plain.problems == forked.problems == {}
    assert plain.latency.count > 8 * 6
    assert 0 < plain.latency.p50 < 1_000
    assert "forks a minute and stream" in (tmp_path / "forks.md").read_text()


def test_bars_are_medians_of_the_ratios() -> None:
    def level(*, with_forks: bool, p98: float, cores: float) -> forks.Measured:
        latency = forks.Spread(p50=1, p90=1, p95=1, p98=p98, p99=p98, max=p98, mean=1, count=1)
        return forks.Measured(with_forks, latency, cores, 20.0 * with_forks, {})

    rounds = [
        (level(with_forks=False, p98=50, cores=1), level(with_forks=True, p98=p98, cores=cores))
        for p98, cores in [(60, 1.3), (100, 1.0), (50, 1.1)]
    ]
    cost, late, failed = forks.bars(rounds)
    assert (cost.found, late.found, failed.found) == (1.1, 1.2, 0)
    assert cost.met
    assert late.met
