"""Learning curves from what training prints."""

import json

import typer
from typer.testing import CliRunner

from model.training import learning_curves

LOG = """reading the audio (decoded once, then cached)
update 50/100 epoch 0 loss 2.500 heard 1.5 h elapsed 20 s left 1 min
update 50 validation {'wer': 0.9, 'cer': 0.5, 'by_source': {'a': {'wer': 0.8, 'cer': 0.4}}}
interrupted at update 60; the same command goes on from there
going on from update 50
update 100/100 epoch 1 loss nan heard 3.0 h elapsed 40 s left 0 min
update 100 validation {'wer': 0.7, 'cer': 0.3, 'by_source': {'a': {'wer': 0.6, 'cer': 0.2}}}
"""


def test_every_validation_is_a_point_with_the_hours_heard_before_it():
    first, last = learning_curves.read_log(LOG.splitlines())
    assert (first.update, first.heard_h, first.loss) == (50, 1.5, 2.5)
    assert (last.update, last.epoch, last.heard_h) == (100, 1, 3.0)
    assert last.wer == {"all": 0.7, "a": 0.6}
    assert last.cer == {"all": 0.3, "a": 0.2}


def test_the_command_writes_a_table_a_picture_and_the_figures(tmp_path):
    app = typer.Typer()
    app.command()(learning_curves.main)
    (tmp_path / "log").write_text(LOG)
    out = tmp_path / "curves"
    done = CliRunner().invoke(app, [f"small={tmp_path / 'log'}", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert [p["update"] for p in json.loads(out.with_suffix(".json").read_text())["small"]] == [50, 100]
    assert "| 100 | 3.0 | nan | 0.700 / 0.300 | 0.600 / 0.200 |" in out.with_suffix(".md").read_text()
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


def test_a_log_without_validation_is_refused(tmp_path):
    app = typer.Typer()
    app.command()(learning_curves.main)
    (tmp_path / "log").write_text("nothing\n")
    done = CliRunner().invoke(app, [f"small={tmp_path / 'log'}"])
    assert done.exit_code == 2
    assert "holds no" in done.output
