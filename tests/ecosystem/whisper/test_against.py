"""`tutti evaluate --against whisper:DIR`, with a real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from model.errors import CheckpointError
from model.recordings import read_pcm
from model.whisper import Whisper
from server.cli import app
from tests.support.audio.speech import SAMPLES

SPOKEN = "porch_fan.flac"


@pytest.fixture(scope="module")
def whisper(whisper_folder: Path) -> Whisper:
    return Whisper.load(whisper_folder, "test")


def listed(folder: Path, *names: str) -> Path:
    lines = [json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()]
    rows = [line | {"audio": str(SAMPLES.parent / line["audio"])} for line in lines if line["audio"] in names]
    path = folder / "list.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def evaluated(*options: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["evaluate", "--json", *map(str, options)])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["combinations"]
    return found


def test_both_are_measured_over_the_same_recordings(
    tmp_path: Path, whisper_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.tools.evaluate_runs.differences", lambda *_: {})  # to fp32, which needs torch
    manifest, texts = listed(tmp_path, SPOKEN, "order.flac"), tmp_path / "texts.jsonl"
    options = ("--against", f"whisper:{whisper_folder}", "--codec", "none,mulaw", "--texts", texts)
    found = evaluated("--manifest", manifest, "--precision", "int8", *options)
    assert [(one.get("against"), one.get("codec")) for one in found] == [
        *((None, None), (None, "mulaw")),
        *(("whisper:model", None), ("whisper:model", "mulaw")),
    ]
    ours, _, theirs, _ = found
    assert theirs["words"] == ours["words"]
    assert theirs["by_source"].keys() == ours["by_source"].keys()
    assert theirs["wer"] < 0.2
    assert theirs["core_s_per_hour"] > 5 * ours["core_s_per_hour"] > 0
    read = [json.loads(line) for line in texts.read_text().splitlines()]
    assert len([line for line in read if line.get("against") == "whisper:model"]) == 4


def test_the_same_recording_gives_the_same_text(whisper: Whisper) -> None:
    pcm = read_pcm(SAMPLES.parent / SPOKEN, 16_000)
    readings = {whisper.read(pcm, "en") for _ in range(3)}
    assert len(readings) == 1
    (reading,) = readings
    assert "porch" in reading.text.lower()
    assert 0.3 < reading.confidence <= 1.0


def test_numbers_are_in_words_where_it_is_asked(whisper_folder: Path, whisper: Whisper) -> None:
    pcm = read_pcm(SAMPLES.parent / "percent.flac", 16_000)
    in_words = Whisper.load(whisper_folder, "test", in_words=True)
    assert any(map(str.isdigit, whisper.read(pcm, "en").text))
    assert not any(c.isnumeric() or c in "%$" for c in in_words.read(pcm, "en").text)


def test_languages_are_those_of_the_model(whisper: Whisper) -> None:
    assert (whisper.has_language("en-GB"), whisper.has_language("zh")) == (True, False)


def test_a_damaged_folder_is_named(whisper_folder: Path, tmp_path: Path) -> None:
    for path in whisper_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[:1_000])
    with pytest.raises(CheckpointError, match=r"^--against: .* cannot be used: "):
        Whisper.load(tmp_path, "--against")
