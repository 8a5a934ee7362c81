"""Loss of the engine under load: which process is killed, what is judged, and one short run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tests.support.clients.loadtest_bench import level_report
from tutti_asr_lab.processes import Process
from tutti_asr_lab.trials.__main__ import app
from tutti_asr_lab.trials.figures import figures
from tutti_asr_lab.trials.scenarios import engine


def test_the_host_that_serves_is_the_one_started_first() -> None:
    processes = [
        Process(30, 1, "500", "engine_host", 1.0),
        Process(20, 1, "400", "front_end", 1.0),
        Process(40, 1, "450", "engine_host", 1.0),
    ]
    assert engine.serving_host(processes).pid == 40
    with pytest.raises(ValueError, match="empty"):
        engine.serving_host(processes[1:2])


def test_a_short_run_loses_nothing(tmp_path: Path) -> None:
    """Two kills under a few streams."""
    options = "engine --streams 4 --stream-s 4 --resumable 2 --every-s 6 --seconds 12 --folder"
    found = CliRunner().invoke(app, [*options.split(), str(tmp_path)])
    document = msgspec.json.decode((tmp_path / "engine_kill.json").read_bytes())
    assert found.exit_code == 0, [
        bar for bar in document["bars"] if bar["found"] is None or bar["found"] > bar["at_most"]
    ]
    assert document["figures"]["losses"] == 2
    assert document["levels"][0]["compared"] > 0
    assert len(document["figures"]["latest_s"]) == 2
    assert not document["figures"]["left_over"]


def test_every_kind_of_loss_is_judged() -> None:
    good, none = level_report(0.01), figures([], {})
    assert all(bar.met for bar in engine.judge(good, (0.1, 0.2), none, bar_s=1.5))
    for changes in ({"failed": 1}, {"mismatched": 1}, {"unanswered": 1}, {"compared": 0}):
        bad = level_report(0.01, **changes)
        assert not all(bar.met for bar in engine.judge(bad, (0.1,), none, bar_s=1.5)), changes
    assert not all(bar.met for bar in engine.judge(good, (0.1, 1.6), none, bar_s=1.5))
    assert not all(bar.met for bar in engine.judge(good, (), none, bar_s=1.5))
