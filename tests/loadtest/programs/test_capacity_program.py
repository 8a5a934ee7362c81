"""Capacity: rule for sustained streams, criteria, page and plot."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import msgspec
import pytest

from loadtest import compare as compare_module
from loadtest.capacity import __main__ as capacity_module
from loadtest.capacity.__main__ import parse_seconds, run
from loadtest.capacity.report import Capacity, carried, judge
from loadtest.compare import measure_each
from loadtest.errors import BadSettings
from loadtest.generator.latencies import CDF_POINTS, Latencies
from loadtest.generator.measures import LevelMeasures, LevelReport, ServerFigures
from loadtest.measurement.server_metrics import Scrape, figures, read
from loadtest.reports.criteria import unmet
from tests.support.clients.fake_listen import FakeListen, Plan
from tests.support.clients.loadtest_bench import T0, settings, write_manifest


def level(streams: int, p50_ms: float, p98_ms: float, **changes: object) -> LevelReport:
    measures = LevelMeasures(T0, T0 + 60, {})
    for number in range(100):
        measures.step_answered(T0 + 1, T0 + 1 + (p50_ms if number < 96 else p98_ms) * 1e-3)
    report = measures.report(streams=streams, to_s=T0 + 60, policy="", generator_cpu_cores=0.0, server=ServerFigures())
    return msgspec.structs.replace(report, **({"compared": 5} | changes))


def test_capacity_is_the_highest_level_up_to_which_all_meet_the_objective() -> None:
    assert carried([level(10, 2, 3), level(400, 50, 99), level(500, 60, 101)]) == 400
    assert carried([level(10, 2, 3), level(200, 90, 120), level(300, 20, 30)]) == 10
    assert carried([level(10, 2, 3), level(200, 20, 30, failed=1)]) == 10
    assert carried([level(10, 2, 3), level(200, 20, 30, refused=1)]) == 10
    assert carried([level(10, 60, 120)]) == 0


def test_criteria_cover_levels_with_a_target_and_the_tail_up_to_80_percent_of_capacity() -> None:
    good = [level(100, 6, 9), level(300, 15, 24), level(400, 40, 95)]
    assert unmet(judge(good)) == []
    assert [each.what for each in judge(good)][:3] == [f"p98 at {streams} streams" for streams in (100, 300, 400)]
    tails = [
        each.what for each in judge([level(100, 2, 9), level(320, 10, 21), level(330, 10, 50), level(400, 40, 95)])
    ]
    assert "p98 over median at 320 streams" in tails
    assert "p98 over median at 330 streams" not in tails  # above 80 % of 400
    assert unmet(judge([level(100, 6, 9, compared=0)])) == [
        "transcripts that differ, to the capacity: not measured (at most 0)"
    ]
    missed = unmet(judge([level(100, 2, 11), level(400, 40, 95)]))
    assert [line.split(":")[0] for line in missed] == ["p98 at 100 streams", "p98 over median at 100 streams"]


def test_seconds_are_one_number_or_one_for_each_level() -> None:
    assert parse_seconds("5", 3) == (5.0, 5.0, 5.0)
    assert parse_seconds("5,10", 2) == (5.0, 10.0)
    for text in ("5,10", "five", ""):
        with pytest.raises(BadSettings):
            parse_seconds(text, 3)


EXPOSITION = """
# TYPE tutti_batch_size histogram
tutti_batch_size_bucket{{le="1.0"}} {one}
tutti_batch_size_bucket{{le="2.0"}} {two}
tutti_batch_size_bucket{{le="4.0"}} {four}
tutti_batch_size_bucket{{le="+Inf"}} {four}
tutti_batch_size_count {four}
tutti_sessions_active{{protocol="deepgram"}} 3.0
tutti_sessions_active{{protocol="upload"}} 2.0
unwanted_total 9.0
"""


def test_batch_sizes_are_counted_by_class() -> None:
    before = Scrape(T0, read(EXPOSITION.format(one=1, two=1, four=1)))
    after = Scrape(T0 + 1, read(EXPOSITION.format(one=4, two=9, four=11)))
    found = figures(before, after)
    assert found.batch_sizes == {1: 3, 2: 5, 4: 2}
    assert found.sessions == 5.0
    assert "unwanted_total" not in after.values


def test_a_plotted_distribution_has_few_points_and_keeps_its_shape() -> None:
    latencies = Latencies()
    for number in range(10_000):
        latencies.add(number * 1e-6)
    cdf = latencies.cdf()
    assert len(cdf) <= CDF_POINTS + 1
    assert cdf[-1] == (pytest.approx(9.999), 1.0)
    assert all(share == pytest.approx(at_ms / 10, abs=0.01) for at_ms, share in cdf)


def test_levels_end_at_the_first_far_above_the_objective_and_the_result_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    with FakeListen(lambda _: Plan(delay_s=0.01, split=True)).in_thread() as server:

        def served(options: list[str]) -> contextlib.nullcontext[str]:
            started.append(options)
            return contextlib.nullcontext(server.url)

        monkeypatch.setattr(compare_module, "served", served)
        monkeypatch.setattr(capacity_module, "measure_each", partial(measure_each, ceiling=lambda: None))
        asked = settings(
            write_manifest(tmp_path),
            streams=(1, 2),
            level_seconds=(0.5, 0.6),
            give_up_ms=1.0,
            stream_s=None,
            split=True,
        )
        code = run(asked, ["eager", "single"], ["--decoder", "greedy"], folder=tmp_path, name="c", command="make bench")
    assert code == 0, capsys.readouterr().err
    assert started == [["--policy", policy, "--decoder", "greedy"] for policy in ("eager", "single")]
    kept = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Capacity)
    runs = kept.comparison.runs
    assert [[level.streams for level in run.levels] for run in runs.values()] == [[1], [1]], "10 ms is above 1 ms"
    page = (tmp_path / "c.md").read_text()
    assert "`make bench`" in page
    assert "| eager | 1 | 1.0× |" in page
    parts = next(line for line in page.splitlines() if "| slowest 2 % |" in line).strip("| ").split(" | ")
    assert [float(each) for each in parts[5:10]] == [1.0, 2.0, 0.25, 0.5, 0.75]  # queue to write
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
