"""Engine on several cores: turns of an engine with sockets, their summary, and the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from loadtest.benchmarks import engine_cores
from loadtest.benchmarks.engine_cores import Layout, Rounds, summarize
from loadtest.benchmarks.engine_turns import TurnedEngine, Turns
from loadtest.errors import BadSettings
from tests.support.servers.fakes import EchoModel


@pytest.mark.parametrize(("rows", "front_ends"), [(1, 1), (5, 2), (8, 4), (3, 8)])
def test_a_turn_answers_one_step_of_each_stream(rows: int, front_ends: int) -> None:
    model = EchoModel(capacity=rows, largest=rows)
    engine = TurnedEngine(model, rows, front_ends)
    for number in range(4):
        took_s, step_s = engine.turn(number)
        assert 0 < step_s < took_s
    assert engine.connections == min(rows, front_ends)
    assert engine._worker.streams == rows


def test_a_turn_of_more_rows_than_a_batch_has_is_several_batches() -> None:
    engine = TurnedEngine(EchoModel(capacity=8, largest=3), 8, 2)
    took_s, step_s = engine.turn(0)
    assert 0 < step_s < took_s


def turns(rows: int, *took_s: float) -> Turns:
    return Turns(rows, took_s, tuple(0.5 * took for took in took_s))


def test_rates_add_up_over_processes_and_ratios_are_of_each_round() -> None:
    one, two = Layout(1, 1), Layout(2, 1)
    found: Rounds = {
        one: [[turns(8, 0.008, 0.008)], [turns(8, 0.016)]],  # 1,000 and 500 rows a second
        two: [[turns(4, 0.004), turns(4, 0.008)], [turns(4, 0.008), turns(4, 0.016)]],  # 1,500 and 750
    }
    first, second = summarize("m", 8, found)
    assert (first.rows_per_s, first.ratio, second.rows_per_s, second.ratio) == (750, 1.0, 1_125, 1.5)
    assert (second.step_us, second.outside_us) == (1_000, 1_000)
    assert second.p98_ms == pytest.approx(15.5, abs=0.1), "of the time of one process's share"


@pytest.mark.parametrize("text", ["2", "x", "0x1", "1x0", "ax2", "-1x1"])
def test_a_layout_that_is_none_is_named(text: str) -> None:
    with pytest.raises(BadSettings, match=text):
        Layout.parse(text)


@pytest.mark.parametrize("rows", ["many", "1,8"])
def test_rows_that_cannot_be_shared_are_refused(rows: str) -> None:
    with pytest.raises(BadSettings, match="--rows"):
        engine_cores._sizes(rows, [Layout(2, 1)])


def test_the_program_measures_layouts_of_the_shipped_model(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(engine_cores.main)
    options = "--layouts 1x1,1x2,2x1 --rows 4,32 --rounds 1 --seconds 0.01 --folder"
    done = CliRunner().invoke(app, [*options.split(), str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert [(each["rows"], each["layout"]["processes"]) for each in document["measured"]] == [
        *((4, 1), (4, 1), (4, 2)),
        *((32, 1), (32, 1), (32, 2)),
    ]
    text = (tmp_path / "engine_cores.md").read_text(encoding="utf-8")
    assert "## tutti-small, int8" in text
    assert "32, 2 processes × 1 thread" in text
