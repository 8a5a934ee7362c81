"""Predictions for servers with front-end processes: the arithmetic, the command, and the page with its output."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from batching.processes import OWN, Processes, StepCosts, choose_processes
from server.cli import app
from tutti_asr_lab.planning.front_ends import Prediction, predict

PAGE = Path(__file__).parents[3] / "docs" / "sizing.md"
COMMANDS = (
    "--cores 2,4,8,16,64",
    "--cores 2,4,8,16,64 --published-us 600 --step-ms 160",
    "--cores 2,4,8,16,64 --published-us 1600 --step-ms 160",
    "--cores 16 --gpu",
)
runner = CliRunner()


def chosen(cores: int, costs: StepCosts = OWN) -> Prediction:
    return predict(cores, choose_processes(cores, costs), costs)


@pytest.mark.parametrize(
    ("cores", "processes", "bounds", "bound"),
    [
        (4, Processes(1, 1, 2), {"event loops": 764, "engine": 857}, "event loops"),
        (8, Processes(3, 1, 4), {"event loops": 2_291, "engine": 1_592}, "engine"),
        (16, Processes(5, 1, 10), {"event loops": 3_818, "engine": 3_281}, "engine"),
        (16, Processes(5, 2, 5), {"event loops": 3_818, "engines": 3_844}, "event loops"),
    ],
)
def test_each_part_carries_what_its_time_allows(
    cores: int, processes: Processes, bounds: dict[str, int], bound: str
) -> None:
    found = predict(cores, processes)
    assert found.bounds == bounds
    assert (found.streams, found.bound_by) == (min(bounds.values()), bound)


def test_one_process_shares_its_cores() -> None:
    one, two = (chosen(cores) for cores in (1, 2))
    assert (one.bound_by, two.bound_by) == ("cores", "engine")
    assert one.streams < two.streams < chosen(3).streams


def plan(options: str) -> str:
    done = runner.invoke(app, ["plan", *options.split()])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ("--cores 0", "--cores 0"),
        ("--cores many", "--cores many"),
        ("--cores 100000000000000000000", "--cores"),
        ("--cores 8 --published-us 1e300", "Invalid value for '--published-us'"),
        ("--cores 8 --published-us 600 --step-ms 1e300", "Invalid value for '--step-ms'"),
        ("--streams 100000000000000000000", "Invalid value for '--streams'"),
        ("--stream-s 1e300", "Invalid value for '--stream-s'"),
        ("--levels 1e300", "--levels"),
        ("--levels 0,4", "--levels"),
        ("--policy lazy", "Invalid value for '--policy'"),
        ("--calibration no-such-file", "--calibration no-such-file"),
        ("--cores 8 --gpu --finals fast", "--finals"),
        ("--slo-ms 1e300", "Invalid value for '--slo-ms'"),
        ("--gpu", "--gpu"),
        ("--cores 8 --streams 100", "--streams"),
        ("--cores 8 --levels 100", "--levels"),
        ("--cores 8 --gpu --max-batch 64", "--max-batch"),
        ("--cores 8 --gpu --published-us 600", "--published-us"),
        ("--cores 8 --step-ms 160", "--step-ms"),
        ("--published-us 600", "--published-us"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: str, where: str) -> None:
    done = runner.invoke(app, ["plan", *options.split()])
    assert done.exit_code == 2
    assert f"tutti: {where}" in done.output


@pytest.mark.parametrize("options", COMMANDS)
def test_the_page_has_what_the_command_prints(options: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"$ tutti plan {options}\n{plan(options)}```" in text, "run the commands of docs/sizing.md again"
