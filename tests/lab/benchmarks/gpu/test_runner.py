"""The runner: failed cases, crashed processes, and time that is up."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tutti_asr_lab.benchmarks.gpu import records, runner
from tutti_asr_lab.benchmarks.gpu.runner import ROW, Settings


def test_rows_are_written_and_a_crashed_process_ends_only_its_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = json.dumps({"case": {"n": 1}, "values": {"us": 1.0}, "error": ""})
    script = f"import sys; print({ROW + row!r}); sys.exit('last words' if sys.argv[4] == 'bits' else 0)"
    real = runner.subprocess.Popen
    monkeypatch.setattr(
        runner.subprocess,
        "Popen",
        lambda command, **options: real([sys.executable, "-c", script, *command[2:]], **options),
    )
    settings = Settings(tmp_path / "gpu.json", "cpu")
    for _ in range(2):
        runner.run(settings, {"bits": 50.0, "steps": 50.0})
    rows = records.read(settings.path).rows
    assert [(each.run, each.section, bool(each.error)) for each in rows[3:]] == [
        (1, "bits", False),
        (1, "bits", True),
        (1, "steps", False),
    ]
    assert "last words" in rows[1].error


def test_a_section_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runner.subprocess.Popen
    monkeypatch.setattr(runner, "GRACE_S", 0.3)
    monkeypatch.setattr(runner.subprocess, "Popen", lambda _, **options: real(["sleep", "60"], **options))
    [row] = runner.run(Settings(tmp_path / "gpu.json", "cpu"), {"bits": 0.2}).rows
    assert "ended with -9" in row.error


def section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float
) -> list[dict[str, Any]]:
    class Section:
        @staticmethod
        def cases(_context: object) -> object:
            yield {"n": 0}, lambda: 1 / 0
            yield {"n": 1}, lambda: {"us": 1.0, "inference": torch.is_inference_mode_enabled()}

    monkeypatch.setattr(runner.importlib, "import_module", lambda _: Section)
    assert runner.run_section("any", seconds, "cpu", dry=False) == 0
    lines = capsys.readouterr().out.splitlines()
    return [json.loads(line.removeprefix(ROW)) for line in lines if line.startswith(ROW)]


def test_an_exception_is_recorded_and_the_next_case_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = section(monkeypatch, capsys, 60.0)
    assert first["error"] == "ZeroDivisionError: division by zero"
    assert second["values"] == {"us": 1.0, "inference": True}


def test_a_section_begins_no_case_after_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = section(monkeypatch, capsys, 0.0)
    assert "time was up" in str(row["error"])


def test_a_missing_document_is_empty_and_an_invalid_one_is_rejected(tmp_path: Path) -> None:
    assert records.read(tmp_path / "gpu.json") == records.Results()
    (tmp_path / "gpu.json").write_text('{"runs": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match="not a result file"):
        records.read(tmp_path / "gpu.json")
