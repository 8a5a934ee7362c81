"""Scaling curves from the output of `tutti evaluate --json`."""

import json

import pytest
import typer
from typer.testing import CliRunner

from tutti_asr_lab.training.acoustic.curves import scaling_curves


def evaluation(wer):
    rows = [
        {"decoder": decoder, "wer": wer * share, "cer": wer / 2, "by_source": {"a": {"wer": wer * share}}}
        for decoder, share in (("greedy", 1.0), ("beam", 0.5))
    ]
    return "a table\n" + json.dumps({"model_sha256": "abc", "combinations": rows}) + "\n"


def run(tmp_path, *arguments):
    app = typer.Typer()
    app.command()(scaling_curves.main)
    return CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "curve")])


def test_the_command_writes_a_table_with_the_references_at_its_end(tmp_path):
    for hours, wer in ((1, 0.9), (2, 0.8)):
        (tmp_path / f"{hours}").write_text(evaluation(wer))
    (tmp_path / "peer").write_text(json.dumps({"rates": {"wer": 0.7, "by_source": {"a": {"wer": 0.6}}}}))
    files = [f"{hours}={tmp_path / str(hours)}" for hours in (2, 1)]
    done = run(tmp_path, "hours", *files, "--pocketsphinx", str(tmp_path / "peer"))
    assert done.exit_code == 0, done.output
    rows = [line for line in (tmp_path / "curve.md").read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| 1 | beam | 0.450 | 0.450 | 0.450 |",
        "| 2 | beam | 0.400 | 0.400 | 0.400 |",
        "| 1 | greedy | 0.900 | 0.900 | 0.450 |",
        "| 2 | greedy | 0.800 | 0.800 | 0.400 |",
        "| | pocketsphinx | 0.700 | 0.600 | |",
    ]
    assert len(json.loads((tmp_path / "curve.json").read_text())["points"]) == 4
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("text", ["", "{}", "nothing"])
def test_a_file_that_is_not_an_evaluation_is_refused_by_name(tmp_path, text):
    (tmp_path / "bad").write_text(text)
    done = run(tmp_path, "hours", f"1={tmp_path / 'bad'}")
    assert done.exit_code == 2
    assert "/bad" in "".join(done.output.replace("│", "").split()), "the path is in the message, across line breaks"
