"""Throughput against latency: loads that count, table, page, picture, and a run with a published graph."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadtest import program
from loadtest.generator.measures import LevelMeasures, LevelReport, ServerFigures
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.report import Document
from loadtest.reports.environment import describe
from tests.support.clients.loadtest_bench import T0
from tests.support.networks.probes import make_probe
from tutti_asr_lab.benchmarks import tradeoff
from tutti_asr_lab.benchmarks.tradeoff import GIVE_UP_MS, Load, Run, Tradeoff, loads, markdown, table


def level(streams: int, p98_ms: float, cores: float | None, **changes: object) -> LevelReport:
    measures = LevelMeasures(T0, T0 + 60, {})
    for _ in range(10):
        measures.step_answered(T0 + 1, T0 + 1 + p98_ms * 1e-3)
    server = ServerFigures(cpu_cores=cores)
    report = measures.report(streams=streams, to_s=T0 + 60, policy="", generator_cpu_cores=0.0, server=server)
    return msgspec.structs.replace(report, audio_s_per_s=float(streams), **changes)


def made() -> Tradeoff:
    """Two networks under two policies; one of them carries no four streams."""
    figures = {
        ("ours", "single"): [level(2, 10.0, 0.02), level(4, 2 * GIVE_UP_MS, 1.0)],
        ("theirs", "single"): [level(1, 20.0, 0.5)],
        ("ours", "deadline"): [level(2, 80.0, 0.01), level(4, 90.0, 0.012)],
        ("theirs", "deadline"): [level(1, 30.0, 0.25)],
    }
    runs = (Run(*names, Document(tuple(levels), describe(1))) for names, levels in figures.items())
    return Tradeoff("the command", tuple(runs))


def test_a_load_counts_where_it_was_carried() -> None:
    run = made().runs[0]
    assert loads(run) == [Load(2, pytest.approx(36.0), pytest.approx(10.0))]
    for bad in ({"refused": 1}, {"failed": 1}, {"mismatched": 1, "compared": 2}):
        document = Document((level(2, 10.0, 0.02, **bad),), run.document.environment)
        assert loads(Run("ours", "single", document)) == []
    document = Document((level(2, 10.0, None),), run.document.environment)
    assert loads(Run("ours", "single", document)) == [], "no processor time was reported"


def test_the_table_has_a_row_for_each_network_and_load() -> None:
    lines = table(made())
    assert lines[2:] == [
        "| ours | 2 | 36.0 | 10.0 | 18.0 | 80.0 |",
        "| ours | 4 | – | – | 10.8 | 90.0 |",
        "| theirs | 1 | 1800.0 | 20.0 | 900.0 | 30.0 |",
    ]
    assert "`the command`" in markdown(made())


def test_result_page_and_picture_are_written(tmp_path: Path) -> None:
    assert tradeoff.write(made(), tmp_path) == program.EXIT_OK
    assert (tmp_path / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    assert "\n".join(table(made())) in (tmp_path / "tradeoff.md").read_text()


def test_a_published_graph_is_measured(tmp_path: Path) -> None:
    folder = make_probe("nemo-ctc", tmp_path).folder
    settings = LoadSettings(url="", streams=(2,), seconds=1.0, warmup_s=0.2, max_recordings=2, long_steps=True)
    found = tradeoff.measured([("published", ("--model", str(folder)), settings)], ["eager"], command="")
    [load] = loads(found.runs[0])
    assert load.streams == 2
    assert min(load.core_s_per_hour, load.p98_ms) > 0.0
