"""Predictions for servers with front-end processes: the arithmetic, the command, and the page with its output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtest.planning.front_ends import COSTS, Costs, forecast, predict
from server.cli import app
from server.configuration.front_ends import front_ends_of

PAGE = Path(__file__).parents[3] / "docs" / "front-ends.md"
COMMANDS = ("--cores 2,4,8,16,64", "--cores 64 --max-batch 256", "--cores 16 --gpu")
runner = CliRunner()


@pytest.mark.parametrize(
    ("processes", "loops", "engine", "bound"),
    [
        ((4, 2, 1), 747, 747, "event loops and engine"),
        ((8, 4, 3), 1_493, 1_600, "event loops"),
        ((16, 8, 7), 2_987, 2_376, "engine"),
        ((64, 8, 16), 2_987, 2_987, "event loops and engine"),
    ],
)
def test_each_part_carries_what_its_time_allows(
    processes: tuple[int, int, int], loops: int, engine: int, bound: str
) -> None:
    found = predict(*processes, gpu=False)
    assert found.bounds == {"event loops": loops, "engine": engine}
    assert (found.streams, found.bound_by) == (min(loops, engine), bound)


def test_a_gpu_leaves_the_engine_its_python() -> None:
    found = predict(16, 13, 1, gpu=True)
    assert (found.bounds, found.bound_by) == ({"event loops": 4_853, "engine": 5_091}, "event loops")


def test_one_process_shares_its_cores() -> None:
    one, two = (predict(cores, *front_ends_of(cores), gpu=False) for cores in (1, 2))
    assert (one.bound_by, two.bound_by) == ("cores", "event loops")
    assert one.streams < two.streams == predict(3, *front_ends_of(3), gpu=False).streams


def test_a_dearer_part_carries_fewer_streams() -> None:
    for slower in (Costs(front_end_us=300.0), Costs(engine_us=30.0), Costs(step_us=120.0)):
        assert predict(4, 2, 1, gpu=False, costs=slower).streams < predict(4, 2, 1, gpu=False).streams


def test_what_was_never_run_is_said() -> None:
    lines = forecast([predict(cores, *front_ends_of(cores), gpu=False) for cores in (2, 8)]).lines
    assert "400 to 500 streams" in lines[1]
    assert lines[2].endswith("nothing")
    assert forecast([predict(2, 0, 1, gpu=True)]).lines[1].endswith("engine alone: 4,000 streams")
    assert "predicted, not measured" in " ".join(lines)


def plan(options: str) -> str:
    done = runner.invoke(app, ["plan", *options.split()])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_prints_text_and_json() -> None:
    document = json.loads(plan("--cores 4,8 --json").splitlines()[-1])
    assert document["costs"]["front_end_us"] == COSTS.front_end_us
    small, large = document["machines"]
    assert (small["front_ends"], small["engine_threads"], small["run"]) == (2, 1, "nothing")
    assert large["predicted"]["streams"] == 1_493
    assert "1,493" in plan("--cores 8")


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ("--cores 0", "--cores 0"),
        ("--cores many", "--cores many"),
        ("--gpu", "--gpu"),
        ("--cores 8 --streams 100", "--streams"),
        ("--cores 8 --levels 100", "--levels"),
        ("--cores 8 --gpu --max-batch 64", "--max-batch"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: str, where: str) -> None:
    done = runner.invoke(app, ["plan", *options.split()])
    assert done.exit_code == 2
    assert f"{where}: " in done.output


@pytest.mark.parametrize("options", COMMANDS)
def test_the_page_has_what_the_command_prints(options: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"$ tutti plan {options}\n{plan(options)}```" in text, "run the commands of docs/front-ends.md again"
