"""Options of the trials: every scenario has its command, and refuses a value out of range by the name of the option."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tutti_asr_lab.trials.__main__ import SCENARIOS, app


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.rpartition(".")[2])
def test_each_scenario_is_a_command_with_its_help(scenario: object) -> None:
    name = str(getattr(scenario, "__name__", "")).rpartition(".")[2]
    done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "--folder" in done.output


@pytest.mark.parametrize(
    "line",
    [
        "failover --fault kill --replicas 4",
        "failover --fault rolling --drain-timeout-s 1",
        "hostile --messages 0",
        "hostile --rounds 0",
        "noisy_neighbor --visits 0",
        "overload --factor 1",
        "receipts --streams 0",
        "receipts --rounds -1",
        "storm --clients 0",
        "storm --per-s -1",
    ],
)
def test_a_value_out_of_range_is_refused(line: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*line.split(), "--folder", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert line.split()[-2] in done.output
