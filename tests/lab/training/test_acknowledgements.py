"""Learning which segments only acknowledge, from a few recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.acoustic import load_model
from model.ctc.acknowledgements import AcknowledgementNetwork
from tests.support.needs import need_programs
from tutti_asr_lab.training import acknowledgements


def test_a_network_is_learned_from_one_half_of_the_voices_and_reported_on_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need_programs("espeak-ng", "flite")
    monkeypatch.setattr(acknowledgements, "UPDATES", 60)
    texts, out = tmp_path / "texts.jsonl", tmp_path / "network.json"
    texts.write_text(json.dumps({"audio": "a.flac", "text": "okay the river"}) + "\n")
    acknowledgements.main(["synthesize", "--manifest", str(texts), "--out", str(tmp_path), "--count", "40"])
    rows = [json.loads(line) for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    assert [row["ack"] for row in rows] == [False, True] * 20
    assert "okay" not in {row["text"] for row in rows if not row["ack"]}
    acknowledgements.main(["learn", "--manifest", str(tmp_path / "manifest.jsonl"), "--out", str(out)])
    chosen, *_, by_text = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    read = AcknowledgementNetwork.load(out, load_model().facts.own_config.phones)
    assert (read.threshold, by_text["threshold"]) == (chosen["threshold"], float("inf"))

    def marked(figures: dict[str, str]) -> int:
        return sum(int(text.split()[0]) for name, text in figures.items() if name.startswith("ack"))

    assert marked(chosen) > marked(by_text)
