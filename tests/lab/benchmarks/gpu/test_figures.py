"""GPU figures in the documents must come from gpu.json."""

import re
from pathlib import Path

import pytest

from tutti_asr_lab.benchmarks.gpu import records
from tutti_asr_lab.benchmarks.gpu.__main__ import RESULTS

ROOT = Path(__file__).parents[4]
RUN = records.read(RESULTS / records.NAME)
UNIT = r"(?:µs|ms|GB/s|TB/s|TFLOP/s|live streams|streams)"
FIGURE = re.compile(rf"(\d[\d,]*(?:\.\d+)?) ?(?:{UNIT})\b")
ON_A_GPU = re.compile(r"\bH[12]00\b")


def numbers():
    """Return all numbers of the rows' values and cases."""
    values = [value for row in RUN.rows if not row.error for value in [*row.values.values(), *row.case.values()]]
    return [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def claims(text):
    """Return figures with a unit in lines that name a GPU."""
    return [(line, figure) for line in text.splitlines() if ON_A_GPU.search(line) for figure in FIGURE.findall(line)]


def is_in_results(figure, known):
    """Whether a measured number rounds to the figure as written."""
    text = figure.replace(",", "")
    digits = len(text.partition(".")[2])
    return any(round(value, digits) == float(text) for value in known)


@pytest.mark.parametrize("name", ["README.md", "docs/gpu.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_every_gpu_figure_of_a_document_is_in_the_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    known = numbers()
    assert [(line, figure) for line, figure in claims(text) if not is_in_results(figure, known)] == []
    if claims(text):
        assert any(str(run.machine["date"])[:10] in text for run in RUN.runs)


def test_the_results_have_no_dry_runs_and_name_every_machine():
    for run in RUN.runs:
        assert not run.dry
        assert all(run.machine.get(fact) for fact in ("device", "driver", "versions", "commit", "date"))


def test_a_figure_that_is_not_in_the_results_is_found():
    text = "On an H100 a step takes 141.2 µs and 1,000 streams 9.9 ms.\n"
    assert [figure for _, figure in claims(text)] == ["141.2", "1,000", "9.9"]
    known = [141.249, 1000.0]
    assert [is_in_results(figure, known) for _, figure in claims(text)] == [True, True, False]
