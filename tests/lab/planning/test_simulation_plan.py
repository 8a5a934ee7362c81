"""Plans: capacity in the simulator, replicas for an objective, and the commands."""

import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from batching.batcher import Policy
from server.cli import app
from tutti_asr_lab.planning.plan_report import provenance_line
from tutti_asr_lab.simulation import calibration as measured
from tutti_asr_lab.simulation.calibration import Calibration, Interference, Overheads, Provenance
from tutti_asr_lab.simulation.planning import Serving, capacity, most_streams, plan, run_load
from tutti_asr_lab.simulation.service_table import ServiceTable

TINY = Calibration(
    Provenance(hardware="a test's machine", cores=2, model="tiny", threads=1),
    0.08,
    ServiceTable.constant({1: 0.012, 8: 0.02, 16: 0.03}),
    Overheads(receive_s=5e-5, batch_s=1e-4, write_s=5e-5, engine_s=1e-4),
)
SERVING = Serving(max_batch=16, stream_s=math.inf)
runner = CliRunner()


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "calibration.json"
    TINY.save(path)
    return str(path)


def test_capacity_is_sustained_and_slightly_more_is_not():
    found = capacity(TINY, SERVING, 0.08)
    assert found.within(0.08)
    most = most_streams(TINY, SERVING)
    assert found.streams < most
    beyond = run_load(TINY, SERVING, found.streams + max(2, most // 50))
    assert not beyond.stable or beyond.latency_ms.p98 > 80


@pytest.mark.parametrize("policy", [Policy.EAGER, Policy.DEADLINE])
def test_a_laxer_objective_never_needs_more_replicas(policy):
    serving = replace(SERVING, policy=policy)
    plans = [plan(TINY, serving, streams=5_000, slo_s=slo_s) for slo_s in (0.015, 0.03, 0.06, 0.3)]
    replicas = [math.inf if found is None else found.replicas for found in plans]
    assert replicas == sorted(replicas, reverse=True)
    assert replicas[-1] < math.inf


def test_a_plan_distributes_the_streams_with_headroom():
    found = plan(TINY, SERVING, streams=1_000, slo_s=0.1, headroom=0.3)
    assert found.replicas * found.streams_per_replica >= 1_000
    assert (found.replicas - 1) * found.streams_per_replica < 1_000
    assert found.streams_per_replica <= 0.7 * found.capacity
    assert found.at.within(0.1)
    assert plan(TINY, SERVING, streams=1_000, slo_s=0.1, headroom=0.6).replicas > found.replicas


def test_an_objective_below_one_step_is_impossible():
    assert capacity(TINY, SERVING, 0.012) is None
    assert plan(TINY, SERVING, streams=1, slo_s=0.012) is None


@pytest.mark.parametrize("bad", [{"streams": 0}, {"slo_s": 0.0}, {"headroom": 1.0}])
def test_a_plan_with_invalid_parameters_is_rejected(bad):
    with pytest.raises(ValueError):
        plan(TINY, SERVING, **({"streams": 1, "slo_s": 0.1, "headroom": 0.1} | bad))


def test_the_command_prints_text_or_json(calibration):
    options = ["plan", "--streams", "1000", "--slo-ms", "80", "--max-batch", "16", "--calibration", calibration]
    done = runner.invoke(app, [*options, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["plan"]["at"]["latency_ms"]["p98"] <= 80
    text = runner.invoke(app, options).output
    assert "a test's machine" in text
    assert f"{document['plan']['replicas']:,}" in text


def test_a_calibration_without_interference_is_reported_as_optimistic():
    measured = replace(TINY, provenance=replace(TINY.provenance, date="2026-11-21"))
    complete = replace(measured, interference=Interference(busy_s=1e-3))
    assert "optimistic" in provenance_line(measured)
    assert "optimistic" not in provenance_line(complete)


def test_an_impossible_objective_exits_with_status_1(calibration):
    done = runner.invoke(app, ["plan", "--slo-ms", "12", "--calibration", calibration])
    assert done.exit_code == 1
    assert "not possible" in done.output


def test_the_command_knows_stereo_calls_two_models_front_ends_and_crowds(calibration):
    def level(streams, *options):
        command = ["plan", "--calibration", calibration, "--levels", str(streams), "--seconds", "4", "--json", *options]
        done = runner.invoke(app, command)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])["levels"][0]

    mono = level(100)
    assert level(50, "--channels", "2") == mono
    assert level(100, "--models", "2")["mean_batch"] < 0.8 * mono["mean_batch"]
    assert level(100, "--front-ends", "2")["loop_busy"] < 0.7 * mono["loop_busy"]
    assert level(100, "--crowd", "100")["latency_ms"]["count"] > 1.2 * mono["latency_ms"]["count"]


def test_finals_are_those_of_a_server_by_default_and_must_have_been_measured(calibration, tmp_path):
    def finals(path, *options):
        done = runner.invoke(app, ["plan", "--calibration", str(path), "--levels", "1", "--json", *options])
        return done.output if done.exit_code else json.loads(done.stdout.splitlines()[-1])["asked"]["finals"]

    passes = tmp_path / "passes.json"
    replace(TINY, passes={"context": measured.SecondPasses(25, (7,), (0.01,))}).save(passes)
    assert [finals(calibration), finals(passes), finals(passes, "--finals", "fast")] == ["fast", "context", "fast"]
    assert "--finals accurate: the calibration has no second pass of 'tiny'" in finals(passes, "--finals", "accurate")


def test_second_passes_take_capacity_from_a_replica():
    fast, context = (
        capacity(measured.shipped(), Serving(finals=finals), 0.1).streams for finals in ("fast", "context")
    )
    assert 0.5 * fast < context < 0.95 * fast
