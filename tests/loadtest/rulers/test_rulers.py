"""Rulers on a live server: levels of streams in real time, reports, and options that do not fit."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from loadtest.errors import BadSettings
from loadtest.reports.environment import describe
from loadtest.rulers import playing
from loadtest.rulers.report import RulerDocument, RulerLevel, as_csv, faults, figure, print_table
from loadtest.rulers.run import measure
from loadtest.rulers.settings import Ruler, RulerSettings
from server.cli import app
from tests.support.audio.speech import samples
from tests.support.documents.programs import Unparsed, check_tutti
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
SHORT = ("no", "seven")


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(playing, "SPREAD_S", 0.0)  # so the first recordings count
    path = tmp_path / "short.jsonl"
    chosen = [each for each in samples() if each.audio.stem in SHORT]
    path.write_text("".join(json.dumps({"audio": str(each.audio), "text": each.text}) + "\n" for each in chosen))
    return path


def test_ttfs_of_a_live_server_is_the_silence_and_its_answer(live_server: Start, manifest: Path) -> None:
    settings = RulerSettings(f"ws://{live_server().host}", Ruler.TTFS, (3,), 2, manifest, explain=True)
    document = measure(settings, lambda _: None)
    (level,) = document.levels
    assert (level.streams, level.recordings, faults(level)) == (3, 3, [])  # as many as streams at least
    ttfs, *parts = level.figures
    assert [part.name for part in parts] == ["queue", "step", "handover", "decode", "rest"]
    means = [part.mean for part in parts if part.mean is not None]
    assert ttfs.p50 is not None
    assert ttfs.mean == pytest.approx(200 + sum(means), abs=1.0), "the silence and the parts add up"
    assert 195 < ttfs.p50 < 1_500  # the client's own 0.2 s, then the answer on a busy machine
    lines = list(csv.DictReader(io.StringIO(as_csv(document))))
    assert [(line["streams"], line["figure"], line["count"]) for line in lines][:2] == [
        ("3", "ttfs", "3"),
        ("3", "queue", "3"),
    ]
    assert lines[0]["starts at"] == "silero's stop less 0.2 s"


@pytest.mark.parametrize("per_connection", [1, 3])
def test_a_connection_plays_as_many_recordings_as_asked(
    live_server: Start, manifest: Path, monkeypatch: pytest.MonkeyPatch, per_connection: int
) -> None:
    monkeypatch.setattr(playing, "PAUSE_PIECES", 5)
    server = live_server()
    settings = RulerSettings(f"ws://{server.host}", Ruler.TTFS, (2,), 6, manifest, per_connection=per_connection)
    (level,) = measure(settings, lambda _: None).levels
    assert (level.recordings, faults(level)) == (6, [])
    server.wait_idle()
    # Six were measured; each of the two streams may have begun another connection before the last one ended.
    assert 6 / per_connection <= server.metric("tutti_sessions_total") <= 6 / per_connection + 2


def test_recordings_that_give_no_measurement_are_faults(live_server: Start, manifest: Path) -> None:
    server = live_server(max_streams=1)
    document = measure(RulerSettings(f"ws://{server.host}", Ruler.TTFS, (2,), 2, manifest), lambda _: None)
    (level,) = document.levels
    assert level.failed
    assert "recordings without a measurement" in faults(level)[0]
    assert any(problem.startswith("refused") for problem in level.problems)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ruler", "ttfs", "--seconds", "5"], "--seconds: cannot be combined with --ruler"),
        (["--ruler", "word-delay", "--explain"], "--explain: needs --ruler ttfs, not word-delay"),
        (["--recordings", "5"], "--recordings: needs --ruler"),
        (["--per-connection", "5"], "--per-connection: needs --ruler"),
        (["--ruler", "turns", "--per-connection", "5"], "--per-connection: needs --ruler ttfs"),
        (["--csv"], "--csv: needs --ruler"),
        (["--ruler", "ttfs", "--csv", "--json"], "--json: cannot be combined with --csv"),
        (["--ruler", "turns", "--csv"], "--csv: not available with --ruler turns"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["loadtest", *options])
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_command_takes_every_ruler() -> None:
    for ruler in Ruler:
        check_tutti(["loadtest", "--ruler", ruler], whole=True)
    with pytest.raises(Unparsed, match="ttfs, word-delay, turns, early-end"):
        check_tutti(["loadtest", "--ruler", "wer"], whole=True)


@pytest.mark.parametrize(("lag_ms", "late"), [(1.2, False), (7.5, True)])
def test_a_report_says_what_the_generator_used_and_whether_it_was_late(lag_ms: float, late: bool) -> None:
    found = figure("ttfs", "a", "b", [0.21])
    level = RulerLevel(300, 1, 0, (found,), {}, lag_ms, 0.17, 22.5)
    document = RulerDocument(Ruler.TTFS, (level,), 1, describe(1))
    text = io.StringIO()
    print_table(document, Console(file=text, width=160))
    assert f"generator: 0.17 of a core, sends late by p99 {lag_ms} ms, at most 22.5 ms" in text.getvalue()
    assert ("the generator was late" in text.getvalue()) is late


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(BadSettings, match="recordings 0: must be from 1"):
        RulerSettings("ws://127.0.0.1", Ruler.TTFS, recordings=0)
