"""`tutti plan --users`: replicas over a day, its files, and what it refuses."""

import csv
import json

import pytest
from typer.testing import CliRunner

from server.cli import app
from tutti_asr_lab.planning.day import profile_of
from tutti_asr_lab.simulation.calibration import Calibration, Overheads, Provenance
from tutti_asr_lab.simulation.service_table import ServiceTable

TINY = Calibration(
    Provenance(hardware="a test's machine", cores=2, model="tiny", threads=1, decoder="beam"),
    0.08,
    ServiceTable.constant({1: 0.012, 8: 0.02, 16: 0.03}),
    Overheads(receive_s=5e-5, batch_s=1e-4, write_s=5e-5, engine_s=1e-4),
)
runner = CliRunner()


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    path = tmp_path_factory.mktemp("day") / "calibration.json"
    TINY.save(path)
    return str(path)


def plan(calibration, *options):
    return runner.invoke(app, ["plan", "--calibration", calibration, "--max-batch", "16", *options])


def test_the_command_prints_replicas_by_hour_and_writes_table_and_picture(calibration, tmp_path):
    table, picture = tmp_path / "day.csv", tmp_path / "day.png"
    done = plan(calibration, "--users", "4000", "--profile", "doubling", "--csv", str(table), "--plot", str(picture))
    assert done.exit_code == 0, done.output
    assert "a test's machine" in done.output
    assert "peak" in done.output
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 60
    assert int(rows[-1]["open"]) == pytest.approx(4_000 * 0.04, rel=0.3)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_more_users_need_more_replicas_and_stereo_calls_twice_as_many(calibration):
    def peak(*options):
        done = plan(calibration, "--profile", "doubling", "--json", *options)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])

    few, many, stereo = peak("--users", "8000"), peak("--users", "16000"), peak("--users", "8000", "--channels", "2")
    assert 1.5 < many["peak_replicas"] / few["peak_replicas"] <= 2.1
    assert 1.5 < stereo["peak_replicas"] / few["peak_replicas"] <= 2.1
    assert few["fullest"]["p98_ms"] <= 100
    assert sum(hour["calls"] for hour in few["hours"]) == pytest.approx(8_000 * 0.033 / 60 * 3_600, rel=0.1)


def test_the_shipped_profiles_cover_a_day_and_an_hour():
    assert profile_of("day").seconds == 24 * 3_600
    assert profile_of("doubling").seconds == 3_600


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--profile", "day"], "--profile: needs --users"),
        (["--users", "10", "--streams", "5"], "--streams: cannot be combined with --users"),
        (["--users", "10", "--cores", "8"], "cannot be combined with --cores"),
        (["--users", "10", "--profile", "no such file"], "--profile"),
        (["--decoder", "greedy"], "measured with beam"),
    ],
)
def test_what_a_plan_would_ignore_is_refused(calibration, options, problem):
    done = plan(calibration, *options)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


def test_an_impossible_objective_exits_with_status_1(calibration):
    done = plan(calibration, "--users", "10", "--slo-ms", "12")
    assert done.exit_code == 1
    assert "not possible" in done.output
