"""Rules of a release: one version everywhere, a failing program is named, and what the workflows run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from deploy.release import build
from deploy.release.build import ReleaseError
from deploy.release.versions import PLACES, set_version, version
from tests.support.audio.speech import ROOT

NUMBER = version()


def test_a_failing_program_is_named_with_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(ReleaseError, match="false -m build --wheel failed"):
        build.build_wheels(tmp_path, tmp_path, {})


def test_the_version_is_written_to_every_place_and_disagreement_is_refused(tmp_path: Path) -> None:
    for name in PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    set_version("7.8.9", tmp_path)
    assert version(tmp_path) == "7.8.9"
    assert NUMBER not in (tmp_path / "docs/installing.md").read_text()
    (tmp_path / "clients/pyproject.toml").write_text('version = "7.8.8"\n')
    with pytest.raises(ValueError, match=r"clients/pyproject.toml: 7.8.8; .*run `python -m deploy.release.versions"):
        version(tmp_path)
    with pytest.raises(ValueError, match="must be three numbers such as"):
        set_version("0.2.0rc1", tmp_path)


def test_the_workflow_tests_what_it_releases_and_builds_by_the_same_command() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    steps = workflow["jobs"]["release"]["steps"]
    commands = [step["run"].splitlines()[-1] for step in steps if "run" in step]
    assert commands.index("make test-release") < commands.index("make release")
    assert steps[-1]["with"]["path"] == "build/release/*"


def test_every_night_tests_what_integration_leaves_out() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["release"]["steps"] if "run" in step]
    assert commands[-2:] == ["make test-lab", "make test-release"]


def test_integration_leaves_out_the_tests_of_the_release_alone() -> None:
    [tests] = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make test-all")]
    assert tests == "make test-all MARKS='not image and not release and not lab'"
