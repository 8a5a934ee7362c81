"""CSV file of a run, and learning curves from it."""

from tutti_asr_lab.training.acoustic.curves import figures, learning_curves
from tutti_asr_lab.training.acoustic.curves.figures import Figures

PROGRESS = {"update": 50, "epoch": 0, "heard_h": 1.5, "elapsed_s": 20.0, "loss": 2.5}
SCORED = {
    "update": 50,
    "heard_h": 1.5,
    "elapsed_s": 25.0,
    "validation_loss": 2.0,
    "greedy_wer": 0.9,
    "greedy_cer": 0.5,
    "greedy_wer a": 0.8,
    "greedy_cer a": 0.4,
}
LATER = {"update": 100, "epoch": 1, "heard_h": 3.0, "elapsed_s": 40.0, "loss": 1.5}
LAST = {
    "update": 100,
    "heard_h": 3.0,
    "validation_loss": 1.0,
    "greedy_wer": 0.7,
    "greedy_cer": 0.3,
    "greedy_wer a": 0.6,
    "greedy_cer a": 0.2,
}


def written(path, *rows):
    made = Figures(path, ["a"], 0)
    for row in rows:
        made.add(row)
    return path


def test_rows_are_read_as_they_were_written(tmp_path):
    path = written(tmp_path / "run.csv", PROGRESS, SCORED)
    assert figures.read(path) == [PROGRESS, SCORED]


def test_resuming_drops_later_rows_and_an_incomplete_one(tmp_path):
    path = written(tmp_path / "run.csv", PROGRESS, SCORED, LATER)
    path.write_text(path.read_text() + "150,2,4")
    again = Figures(path, ["a"], 99)
    assert again.elapsed_s == 25.0
    assert figures.read(path) == [PROGRESS, SCORED]


def test_the_curves_of_a_run_are_drawn(tmp_path):
    assert learning_curves.rates_of(LAST, "greedy_wer") == {"all": 0.7, "a": 0.6}
    rows = figures.read(written(tmp_path / "run.csv", PROGRESS, SCORED, LATER, LAST))
    learning_curves.draw(rows, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"
