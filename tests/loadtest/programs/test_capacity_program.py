"""Capacity: rule for sustained streams, criteria, page and plot, by policy or another option; the servers started."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest import capacity as capacity_module
from loadtest import served as served_module
from loadtest.capacity import Capacity, Ceiling, carried, judge, level_rows, parse_seconds, run
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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Return the options of the servers that are started; all are one that answers after 10 ms."""
    options_of: list[list[str]] = []
    with FakeListen(lambda _: Plan(delay_s=0.01, split=True)).in_thread() as server:

        def served(options: list[str]) -> contextlib.nullcontext[str]:
            options_of.append(options)
            return contextlib.nullcontext(server.url)

        monkeypatch.setattr(capacity_module, "served", served)
        yield options_of


def test_levels_end_at_the_first_far_above_the_objective_and_the_result_is_written(
    tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    above = settings(
        write_manifest(tmp_path), streams=(1, 2), level_seconds=(0.5, 0.6), give_up_ms=1.0, stream_s=None, split=True
    )
    given: dict[str, Any] = {"folder": tmp_path, "name": "c", "command": "make bench", "ceiling": lambda: None}
    assert run(above, ["eager", "single"], ["--decoder", "greedy"], **given) == 0, capsys.readouterr().err
    assert started == [["--decoder", "greedy", "--policy", policy] for policy in ("eager", "single")]
    kept = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Capacity)
    assert [[level.streams for level in run.levels] for run in kept.runs.values()] == [[1], [1]], "10 ms is above 1 ms"
    page = (tmp_path / "c.md").read_text()
    assert "`make bench`" in page
    assert "Ceiling: not measured" in page
    assert "| eager | 1 | 1.0× |" in page
    parts = next(line for line in page.splitlines() if "| slowest 2 % |" in line).strip("| ").split(" | ")
    assert [float(each) for each in parts[5:10]] == [1.0, 2.0, 0.25, 0.5, 0.75]  # queue to write
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_another_option_is_compared_in_one_table_without_the_targets_of_policies(
    tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Ceiling({1: 1.5, 64: 10.0}, precision="bf16", threads=1, read_ns=141.2, in_caches=False)
    given: dict[str, Any] = {"vary": "beams", "folder": tmp_path, "name": "n", "command": "c", "ceiling": lambda: bare}
    assert run(settings(write_manifest(tmp_path)), ["16", "8"], ["--threads", "1"], **given) == 0
    assert [options[-2:] for options in started] == [["--beams", "16"], ["--beams", "8"]]
    out, err = capsys.readouterr()
    assert "batch 64: 10.00 ms, 512 streams" in err
    assert "a read of the weights: 141 ns, from memory, so steps are slow" in err
    kept = msgspec.json.decode(out.splitlines()[-1], type=Capacity)
    assert [(row[0], row[1]) for row in level_rows(kept)] == [("3", "16"), ("3", "8")]
    assert level_rows(kept)[0][5] == "1.0×"
    assert "| streams | beams | p50 |" in (tmp_path / "n.md").read_text()
    measured = kept.runs["16"].levels[0]
    assert not [bar for bar in judge([msgspec.structs.replace(measured, streams=400)], {}) if "p98 at" in bar.what]


READY = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def test_a_started_server_is_polled_until_ready_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "serve_command", lambda port, _: [sys.executable, "-c", READY, str(port)])
    with served_module.served([]) as url:
        port = int(url.rpartition(":")[2])
        assert served_module.is_ready(port)
    assert not served_module.is_ready(port)
