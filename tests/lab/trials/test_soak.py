"""Soak test: rule, page, and a short run from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from loadtest.generator.latencies import Latencies
from loadtest.generator.measures import LevelReport, ServerFigures
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.report import Document, Result
from loadtest.reports.criteria import unmet
from loadtest.reports.environment import describe
from tests.support.clients.fake_listen import FakeListen, Plan
from tests.support.clients.loadtest_bench import level_by_period, settings, write_manifest
from tutti_asr_lab.trials.__main__ import app
from tutti_asr_lab.trials.scenarios import soak as soak_module
from tutti_asr_lab.trials.scenarios.soak import Rule
from tutti_asr_lab.trials.trial import TrialReport, markdown

MINUTES = 10


def soaked(
    p98_ms: list[float], memory_mib: list[float | None], **changes: object
) -> tuple[LevelReport, tuple[Latencies, ...]]:
    """Return a level with these latencies by minute and this memory at their ends."""
    servers = [ServerFigures(memory_mib=mib, sessions=7.0) for mib in memory_mib]
    changes = {"streams": 7, "compared": 9} | changes
    return level_by_period([p98 * 1e-3 for p98 in p98_ms], servers, steps=50, **changes)


def missed(rule: Rule, p98_ms: list[float], memory_mib: list[float | None], **changes: object) -> list[str]:
    level, minutes = soaked(p98_ms, memory_mib, **changes)
    return [line.split(":")[0] for line in unmet(rule.judge(level, *rule.windows(minutes)))]


FLAT = [10.0] * MINUTES
STEADY: list[float | None] = [500.0] * MINUTES


def test_a_level_without_growth_meets_the_rule() -> None:
    assert missed(Rule(), FLAT, STEADY) == []
    assert missed(Rule(), [10.0] * 5 + [10.9] * 5, STEADY) == []
    assert missed(Rule(), [10.0] * 5 + [5.0] * 5, STEADY) == []


def test_latency_that_grows_by_more_than_a_tenth_is_missed() -> None:
    assert missed(Rule(), [10.0] * 5 + [11.2] * 5, STEADY) == ["chunk latency p98, last 5 min"]


def test_windows_are_judged_as_a_whole() -> None:
    """A bad minute is part of the p98 of its five minutes; one outside both windows is ignored."""
    assert missed(Rule(), [10.0] * 9 + [30.0], STEADY) == ["chunk latency p98, last 5 min"]
    assert missed(Rule(), [10.0] * 5 + [30.0] * 2 + [10.0] * 5, [500.0] * 12) == []


def test_memory_may_grow_by_one_percent_after_the_first_minute() -> None:
    assert missed(Rule(), FLAT, [500.0] * 9 + [504.9]) == []
    assert missed(Rule(), FLAT, [500.0] * 9 + [505.1]) == ["memory at the end"]
    assert missed(Rule(), FLAT, [*[500.0] * 9, None]) == ["memory at the end"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mismatched": 1}, "transcripts that differ from those alone"),
        ({"compared": 0}, "transcripts that differ from those alone"),
        ({"failed": 1}, "streams that failed"),
        ({"refused": 1}, "streams refused"),
        ({"unanswered": 1}, "steps without a result"),
    ],
)
def test_each_fault_of_a_level_misses_its_criterion(changes: dict[str, object], what: str) -> None:
    assert missed(Rule(), FLAT, STEADY, **changes) == [what]


def test_too_few_minutes_miss_the_criteria() -> None:
    assert missed(Rule(), FLAT[:9], STEADY[:9]) == ["chunk latency p98, last 5 min"]
    assert missed(soak_module.SHORT_RULE, FLAT[:3], STEADY[:3]) == []


def test_the_page_shows_each_minute_and_the_verdict() -> None:
    level, minutes = soaked([10.0] * 5 + [20.0] * 5, STEADY)
    result = Result(Document((level,), describe(1)), (), (minutes,))
    page = markdown(soak_module.report_of(soak_module.Plan(capacity=10), result, Rule()), "soak.png")
    assert "| 7 | 10 | 20.0 |" in page
    assert "**missed**" in page
    assert "70% of a capacity of 10" in page


def test_a_soak_from_end_to_end_writes_its_three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams come and go for a second; the missing minutes are added to the result."""
    real = soak_module.measure
    small = settings(write_manifest(tmp_path))

    def measured(asked: LoadSettings) -> Result:
        result = real(replace(asked, manifest=small.manifest, drain_s=0.4, stream_s=None))
        level, minutes = soaked([10.0] * 3, [500.0] * 3)
        short = msgspec.structs.replace(result.document.levels[0], minutes=level.minutes)
        return Result(Document((short,), result.document.environment), result.cdfs, (minutes,))

    monkeypatch.setattr(soak_module, "measure", measured)
    words = ["soak", "--capacity", "7", "--minutes", "0.017", "--warmup-s", "0.1", "--folder", str(tmp_path)]
    with FakeListen(lambda _: Plan()).in_thread() as server:
        ran = CliRunner().invoke(app, [*words, "--url", server.url])
    kept = msgspec.json.decode((tmp_path / "soak.json").read_bytes(), type=TrialReport)
    assert ran.exit_code == 0, unmet(kept.bars)
    assert kept.levels[0].arrivals == "churn"
    assert kept.levels[0].compared > 0
    assert kept.command.startswith("python -m tutti_asr_lab.trials")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert "# Soak" in (tmp_path / "soak.md").read_text()
