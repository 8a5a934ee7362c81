"""Runs of the stateful test: steps counted from its report, seed after seed, up to the first failure."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from loadtest.benchmarks import stateful
from loadtest.benchmarks.stateful import StatefulRun, run

REPORT = """<testsuites><testsuite>
<testcase name="test_it[Policy.EAGER]"><properties><property name="steps" value="70"/><property name="early" value="2"/>
</properties></testcase>
<testcase name="test_it[Policy.SINGLE]"><properties><property name="steps" value="30"/></properties></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def pytest_runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stand in for pytest: every run passes but that of seed 5; returns their command lines."""
    runs: list[list[str]] = []

    def fake(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        runs.append(command)
        if "pytest" not in command:
            return subprocess.CompletedProcess(command, 0, "", "")  # git, asked for the commit
        report = next(part for part in command if part.startswith("--junitxml=")).partition("=")[2]
        Path(report).write_text(REPORT)
        failed = "--hypothesis-seed=5" in command
        return subprocess.CompletedProcess(command, int(failed), "AssertionError: out of order" if failed else "", "")

    monkeypatch.setattr(stateful.subprocess, "run", fake)
    return runs


def test_seeds_are_run_until_there_are_enough_steps(pytest_runs: list[list[str]], tmp_path: Path) -> None:
    assert run(250, 1, tmp_path / "s.json", "command") == 0
    kept = msgspec.json.decode((tmp_path / "s.json").read_bytes(), type=StatefulRun)
    assert (kept.passed, kept.steps, kept.seeds) == (True, 300, (1, 3))
    assert kept.by_policy == {"Policy.EAGER": 210, "Policy.SINGLE": 90}
    assert kept.counts == Counter(steps=300, early=6)
    ran = [command for command in pytest_runs if "pytest" in command]  # git is asked for the commit, too
    assert [part for command in ran for part in command if "seed" in part] == [
        f"--hypothesis-seed={seed}" for seed in (1, 2, 3)
    ]


def test_the_first_failure_ends_it_and_is_kept(pytest_runs: list[list[str]], tmp_path: Path) -> None:
    assert run(10_000, 4, tmp_path / "s.json", "command") == 1
    kept = msgspec.json.decode((tmp_path / "s.json").read_bytes(), type=StatefulRun)
    assert (kept.passed, kept.seeds) == (False, (4, 5))
    assert "out of order" in kept.failure
