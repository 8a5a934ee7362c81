"""Short overload of a real server with few slots: latency of accepted streams, refusals, leaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import soundfile

from loadtest.errors import BadSettings
from loadtest.generator.measures import LevelMeasures, LevelReport, RefusalFigures
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure_levels
from loadtest.reports.criteria import Criterion, unmet
from tests.support.clients.fake_listen import FakeListen
from tests.support.clients.loadtest_bench import T0, level_report, settings, write_manifest
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell
from tutti_asr_lab.trials.leftovers import IdleFigures, judge_leftovers
from tutti_asr_lab.trials.scenarios.overload import Plan, judge, overload
from tutti_asr_lab.trials.trial import TrialReport, write

Start = Callable[..., LiveServer]
SLOTS = 4
WORDS = ("one small step", "a giant leap", "for all of us")


@pytest.fixture
def spoken(tmp_path: Path) -> LoadSettings:
    """Return settings with recordings of about a second, each with different words."""
    rows = []
    for number, words in enumerate(WORDS):
        soundfile.write(tmp_path / f"{number}.wav", np.concatenate([spell(words), silence(0.3)]), 16_000)
        rows.append(json.dumps({"audio": f"{number}.wav", "text": words}))
    manifest = tmp_path / "spoken.jsonl"
    manifest.write_text("\n".join(rows))
    return LoadSettings("", (1,), warmup_s=0.2, manifest=manifest, retry=True)


def test_an_overloaded_server_serves_accepted_streams_refuses_others_and_is_idle_afterwards(
    live_server: Start, spoken: LoadSettings
) -> None:
    server = live_server(max_streams=SLOTS)
    plan = Plan(factor=3.0, seconds=3.0, full_s=1.0, limit=SLOTS)
    found = asyncio.run(overload(f"ws://{server.host}", plan, spoken))
    _, level = found.levels
    refusals = level.refusals
    assert level.streams == 3 * SLOTS
    assert level.compared > 0
    assert level.audio_s_per_s == pytest.approx(SLOTS, abs=1.5), "about one stream per slot is served"
    assert refusals is not None
    assert refusals.answer_ms is not None
    assert refusals.answer_ms.count >= 2 * SLOTS
    server.wait_idle()
    slow = {
        "accepted streams, chunk latency p98",
        "refusals, time to the response p98",
    }  # server and generator share this process
    not_offered = {"tasks"} if found.figures["after"].tasks is None else set[str]()
    assert {each.what for each in found.bars if not each.met} <= slow | not_offered, unmet(found.bars)


def test_uploads_are_served_alongside_live_streams(live_server: Start, spoken: LoadSettings) -> None:
    server = live_server(max_streams=SLOTS)
    asked = replace(spoken, url=f"ws://{server.host}", streams=(1,), seconds=1.5, uploads=1, split=True)
    result = asyncio.run(measure_levels(asked, progress=lambda _: None))
    [level] = result.document.levels
    assert level.uploads is not None
    assert level.uploads.failed == 0
    assert level.uploads.done > 0
    assert level.uploads.audio_s_per_s > 1
    assert (level.failed, level.mismatched) == (0, 0)
    parts = (level.queue_wait_ms, level.step_ms, level.handover_ms, level.decode_ms, level.write_ms)
    assert all(part is not None and part.mean > 0 for part in parts), (
        "the server says of each answer where its time went"
    )
    server.wait_idle()


def refused_within(seconds: float, status: int = 503, without: int = 0) -> RefusalFigures:
    measures = LevelMeasures(T0, T0 + 60, {})
    measures.refusal.add(seconds)
    return RefusalFigures(measures.refusal.spread(), {status: 1}, without)


@pytest.mark.parametrize(
    ("level", "missed"),
    [
        (level_report(0.09, refusals=refused_within(0.04)), []),
        (level_report(0.11, refusals=refused_within(0.04)), ["accepted streams, chunk latency p98"]),
        (level_report(0.09, refusals=refused_within(0.06)), ["refusals, time to the response p98"]),
        (level_report(0.09, refusals=refused_within(0.04, 429)), ["refusals with another status than 503"]),
        (level_report(0.09, refusals=refused_within(0.04, without=1)), ["refusals without Retry-After"]),
    ],
)
def test_each_criterion_of_an_overload_can_be_missed(level: LevelReport, missed: list[str]) -> None:
    assert [each.what for each in judge(level) if not each.met] == missed


def test_an_overload_without_refusals_misses_its_criteria() -> None:
    assert len([each for each in judge(level_report(0.01, refusals=None)) if not each.met]) == 3


def test_leaks_and_missing_figures_are_missed_criteria() -> None:
    idle = IdleFigures(0, 0, 0, 5, 100.0)
    assert unmet(judge_leftovers(idle, idle)) == []
    assert unmet(judge_leftovers(idle, msgspec.structs.replace(idle, memory_mib=100.9))) == []
    for changes in ({"sessions": 1}, {"slots": 1}, {"queued_steps": 1}, {"tasks": 6}, {"memory_mib": 101.2}):
        assert len(unmet(judge_leftovers(idle, msgspec.structs.replace(idle, **changes)))) == 1
    assert len(unmet(judge_leftovers(idle, IdleFigures(None, None, None, None, None)))) == 5
    assert Criterion("x", 1, None).line == "x: not measured (at most 1)"


def test_the_result_is_written_and_a_server_without_metrics_gives_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutti_asr_lab.trials.scenarios.overload.IDLE_WITHIN_S", 0.0)
    with FakeListen().in_thread() as server:
        base = settings(write_manifest(tmp_path))
        report = asyncio.run(overload(server.url, Plan(seconds=0.5, full_s=0.5, limit=1), base))
        assert write(report, tmp_path, "overload") == 1
        with pytest.raises(BadSettings, match="--limit"):
            asyncio.run(overload(server.url, Plan(), base))
    kept = msgspec.json.decode((tmp_path / "overload.json").read_bytes(), type=TrialReport)
    assert (kept.figures["limit"], kept.levels[-1].streams) == (1, 3)
    assert "# Overload" in (tmp_path / "overload.md").read_text()
    assert "slots left: not measured" in capsys.readouterr().err
