"""CPU contention: phases, figures and criteria, and a short run with busy processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest.errors import BadSettings, ServerNotReady
from loadtest.generator.level import Schedule
from loadtest.generator.measures import LevelReport, ServerFigures
from loadtest.measurement.run import measure
from loadtest.reports.criteria import unmet
from tests.support.clients.fake_listen import FakeListen
from tests.support.clients.loadtest_bench import level_by_period, settings, write_manifest
from tutti_asr_lab.trials.scenarios import noisy_neighbor
from tutti_asr_lab.trials.scenarios.noisy_neighbor import Phase, Plan, busy, figures, judge, visit
from tutti_asr_lab.trials.trial import TrialReport, write

SHORT = Plan(quiet=1, busy_s=2, after=1, visits=1, transition=1)


def measured(p98_ms: list[float], plan: Plan, **changes: object) -> tuple[LevelReport, tuple[Phase, ...]]:
    """Return a level with these latencies by second, fifty open streams, and a limit that falls by one per second."""
    servers = [ServerFigures(sessions=50.0, limit=90.0 - second, slowdown=1.0) for second in range(len(p98_ms))]
    latencies_s, changes = [p98 * 1e-3 for p98 in p98_ms], {"streams": 60} | changes
    level, seconds = level_by_period(latencies_s, servers, period_s=1.0, steps=50, **changes)
    return level, figures(plan, level, seconds)


def test_phases_cover_the_plan_and_only_the_start_of_visits_is_not_judged() -> None:
    plan = Plan(quiet=10, busy_s=8, after=5, visits=2, transition=3)
    phases = plan.phases()
    assert [(phase.from_s, phase.to_s) for phase in phases] == [
        (0, 10),
        (10, 13),
        (13, 18),
        (18, 23),
        (23, 26),
        (26, 31),
        (31, 36),
    ]
    assert phases[-1].to_s == plan.seconds
    assert [phase.name for phase in phases if not phase.judged] == ["visit 1, first 3 s", "visit 2, first 3 s"]
    assert plan.visits_s == ((10, 18), (23, 31))


def test_a_plan_with_only_transition_is_rejected() -> None:
    with pytest.raises(BadSettings):
        Plan(busy_s=3, transition=3)


def test_figures_of_a_phase_are_those_of_its_seconds() -> None:
    _, phases = measured([10.0, 300.0, 50.0, 20.0], SHORT)
    p98 = {phase.name: round(phase.chunk_latency_ms.p98) for phase in phases if phase.chunk_latency_ms}
    assert p98 == {"before": 10, "visit 1, first 1 s": 300, "visit 1, the rest": 50, "after visit 1": 20}
    assert [(phase.open, phase.limit) for phase in phases] == [(50, 90), (50, 89), (50, 88), (50, 87)]


@pytest.mark.parametrize(
    ("p98_ms", "changes", "missed"),
    [
        ([10.0, 300.0, 99.0, 20.0], {}, []),
        ([10.0, 10.0, 101.0, 20.0], {}, ["60 offered, visit 1, the rest: p98"]),
        ([10.0, 10.0, 10.0, 101.0], {}, ["60 offered, after visit 1: p98"]),
        ([10.0] * 4, {"failed": 1}, ["60 offered: accepted streams that failed"]),
        ([10.0] * 4, {"mismatched": 1}, ["60 offered: transcripts that differ from those alone"]),
    ],
)
def test_the_objective_applies_to_all_phases_but_the_start_of_a_visit(
    p98_ms: list[float], changes: dict[str, object], missed: list[str]
) -> None:
    assert [bar.what for bar in judge(*measured(p98_ms, SHORT, **changes)) if not bar.met] == missed


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def watch_starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    started: list[int] = []
    begin = noisy_neighbor.start

    def noted(*arguments: object) -> object:
        process = begin(*arguments)  # type: ignore[arg-type]
        started.append(process.pid)
        return process

    monkeypatch.setattr(noisy_neighbor, "start", noted)
    return started


def test_busy_processes_compute_and_are_stopped_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started = watch_starts(monkeypatch)

    async def work() -> None:
        async with busy(2, 20.0):
            assert len(started) == 2
            assert all(map(alive, started))
            raise ServerNotReady

    with pytest.raises(ServerNotReady):
        asyncio.run(work())
    assert not any(map(alive, started))


def test_a_canceled_visit_stops_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started = watch_starts(monkeypatch)
    come = asyncio.Event()
    begin = noisy_neighbor.start

    def noted(*arguments: object) -> object:
        process = begin(*arguments)  # type: ignore[arg-type]
        come.set()
        return process

    monkeypatch.setattr(noisy_neighbor, "start", noted)

    async def work() -> None:
        schedule = Schedule(begin_s=-1.0, from_s=-1.0, end_s=60.0, spread_s=0.0)
        visiting = asyncio.create_task(
            visit(Plan(quiet=1, busy_s=30, after=1, visits=1, transition=1), 1, lambda: 0.0, schedule)
        )
        await come.wait()
        visiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await visiting

    asyncio.run(work())
    assert started
    assert not any(map(alive, started))


def test_a_task_alongside_a_level_starts_and_ends_with_it(tmp_path: Path) -> None:
    seen: list[object] = []

    async def alongside(schedule: Schedule) -> None:
        seen.append(schedule)
        try:
            await asyncio.sleep(60.0)
        finally:
            seen.append("over")

    with FakeListen().in_thread() as server:
        measure(settings(write_manifest(tmp_path), server.url), progress=lambda _: None, alongside=alongside)
    assert isinstance(seen[0], Schedule)
    assert seen[1:] == ["over"]


def test_a_short_run_writes_document_page_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = watch_starts(monkeypatch)
    monkeypatch.setattr(noisy_neighbor, "ARRIVAL_S", 0.1)
    real = noisy_neighbor.measure
    small = settings(write_manifest(tmp_path))
    fields: Any = {"manifest": small.manifest, "drain_s": 0.4, "stream_s": None}
    monkeypatch.setattr(noisy_neighbor, "measure", lambda asked, alongside: real(replace(asked, **fields), alongside))
    with FakeListen().in_thread() as server:
        plan = replace(SHORT, streams="1,2", processes=1, url=server.url)
        report = noisy_neighbor.play(plan)
    assert write(report, tmp_path, "noisy_neighbor") == bool(unmet(report.bars))
    assert len(started) == 2, "a process for each of the two levels"
    assert not any(map(alive, started))
    kept = msgspec.json.decode((tmp_path / "noisy_neighbor.json").read_bytes(), type=TrialReport)
    assert [level.streams for level in kept.levels] == [1, 2]
    assert [len(panel.at) for panel in kept.panels[::2]] == [SHORT.seconds] * 2
    assert "visit 1, the rest" in (tmp_path / "noisy_neighbor.md").read_text()
    assert (tmp_path / "noisy_neighbor.png").stat().st_size > 10_000


def test_levels_can_be_reported_by_the_second(tmp_path: Path) -> None:
    with FakeListen().in_thread() as server:
        asked = settings(write_manifest(tmp_path), server.url, seconds=1.6, period_s=0.5)
        [level], [parts] = ((result := measure(asked, progress=lambda _: None)).document.levels, result.minutes)
    assert isinstance(level, LevelReport)
    assert len(parts) == 4
    assert len(level.minutes) >= 3
    with pytest.raises(BadSettings):
        settings(tmp_path, period_s=0.1)
