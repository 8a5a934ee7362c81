"""The runner, when a section crashes, hangs, or loses the device."""

import json
import sys

import pytest
import torch

from tutti_asr_lab.benchmarks.gpu import records, runner
from tutti_asr_lab.benchmarks.gpu.runner import Runner, Settings
from tutti_asr_lab.benchmarks.gpu.sections import child
from tutti_asr_lab.benchmarks.gpu.sections.child import BEGIN, FACTS, LOST, ROW


class Scripted:
    """A child process with given output lines and exit code; records its arguments."""

    scripts = ()
    asked = ()

    def __init__(self, arguments):
        self.asked.append(arguments)
        self.tail = ["last words"]
        self.ending = "exit code 1"
        if arguments[0] == "facts":
            self._lines, self.code = [FACTS + json.dumps({"device": "scripted"})], 0
        else:
            self._lines, self.code = self.scripts.pop(0)

    def until(self, seconds):
        yield from self._lines


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_Child", Scripted)
    monkeypatch.setattr(Scripted, "asked", [])

    def call(*scripts, sections=("probe",)):
        monkeypatch.setattr(Scripted, "scripts", list(scripts))
        settings = Settings(tmp_path / "gpu.json", "cpu", seconds=100.0)
        Runner(settings).run("1", dict.fromkeys(sections, 50.0))
        return records.read(settings.path).rows

    return call


def begin(index):
    return f"{BEGIN}{index} " + json.dumps({"case": index})


def row(index, error=""):
    return ROW + json.dumps({"case": {"case": index}, "values": {} if error else {"us": 1.0}, "error": error})


def found(rows):
    return [(each.case.get("case"), bool(each.error)) for each in rows]


def test_rows_are_written_immediately(run):
    assert found(run(([begin(0), row(0), begin(1), row(1, "bad")], 0))) == [(0, False), (1, True)]


def test_a_section_is_restarted_after_the_case_that_lost_the_device(run):
    rows = run(([begin(0), row(0), begin(1), row(1, "device lost")], LOST), ([begin(2), row(2)], 0))
    assert found(rows) == [(0, False), (1, True), (2, False)]
    assert [each[each.index("--first") + 1] for each in Scripted.asked if each[0] == "section"] == ["0", "2"]


def test_a_case_that_crashes_its_process_is_recorded_with_its_last_output(run):
    rows = run(([begin(0)], -11), ([begin(1), row(1)], 0))
    assert found(rows) == [(0, True), (1, False)]
    assert "last words" in rows[0].error


def test_a_section_that_keeps_failing_is_abandoned_and_the_next_one_runs(run):
    scripts = [([begin(each)], -11) for each in range(runner.MOST_STARTS)]
    rows = run(*scripts, ([begin(0), row(0)], 0), sections=("probe", "bits"))
    assert [each.section for each in rows].count("probe") == runner.MOST_STARTS
    assert (rows[-1].section, rows[-1].error) == ("bits", "")


def test_a_run_keeps_the_rows_of_earlier_runs(run):
    run(([begin(0), row(0)], 0))
    assert [each.run for each in run(([begin(1), row(1)], 0))] == [0, 1]


def test_a_process_without_output_is_killed(monkeypatch):
    monkeypatch.setattr(runner, "HANG_S", 0.5)
    monkeypatch.setattr(sys, "executable", "/bin/cat")  # waits for standard input
    real = runner.subprocess.Popen
    silent = [sys.executable]
    monkeypatch.setattr(
        runner.subprocess, "Popen", lambda _, **options: real(silent, stdin=runner.subprocess.PIPE, **options)
    )
    process = runner._Child(["section"])
    assert list(process.until(60.0)) == []
    assert process.code == -9
    assert process.ending == "silent for 0.5 s"


def test_an_exception_is_recorded_and_the_next_case_runs(monkeypatch, capsys):
    class Section:
        @staticmethod
        def cases(_context):
            yield {"n": 0}, lambda: 1 / 0
            yield {"n": 1}, lambda: {"us": 1.0, "inference": torch.is_inference_mode_enabled()}

    monkeypatch.setattr(child.importlib, "import_module", lambda _: Section)
    assert child.main("any", 0, 60.0, "cpu", dry=False) == 0
    rows = [json.loads(line.removeprefix(ROW)) for line in capsys.readouterr().out.splitlines() if line.startswith(ROW)]
    assert rows[0]["error"] == "ZeroDivisionError: division by zero"
    assert rows[1]["values"] == {"us": 1.0, "inference": True}


def test_a_section_begins_no_case_after_its_time_is_up(monkeypatch, capsys):
    class Section:
        @staticmethod
        def cases(_context):
            yield {"n": 0}, lambda: pytest.fail("ran")

    monkeypatch.setattr(child.importlib, "import_module", lambda _: Section)
    assert child.main("any", 0, 0.0, "cpu", dry=False) == 0
    assert "time was up" in capsys.readouterr().out
