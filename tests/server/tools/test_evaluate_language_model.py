"""`tutti evaluate` with a language model of one's own: a warning if it lacks the references' words, once a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from server.cli import app
from server.tools import evaluate_runs
from server.tools.evaluate import Evaluation

SAID = "turn the heating down"


def arpa(folder: Path, words: Sequence[str], name: str = "own.arpa") -> Path:
    path = folder / name
    head = f"\\data\\\nngram 1={len(words) + 3}\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-1\t</s>\n"
    path.write_text(head + "".join(f"-1\t{word}\n" for word in words) + "\n\\end\\\n", encoding="utf-8")
    return path


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000, np.int16), 16_000)
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps({"audio": "a.wav", "text": SAID, "duration": 1.0}))
    return path


@pytest.fixture
def evaluated(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command, whose recognizer hears nothing."""

    async def evaluate(utterances: Any, *_: Any, **__: Any) -> Evaluation:
        return Evaluation(utterances, ("",) * len(utterances), 0.5)

    monkeypatch.setattr(evaluate_runs, "evaluate", evaluate)

    def run(*options: object) -> Any:
        asked = ["evaluate", "--manifest", str(manifest), "--json", "--decoder", "beam", *map(str, options)]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 0, result.output
        return result.stderr, json.loads(result.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize(
    ("words", "lacks", "share"),
    [
        (["yes", "no"], "lacks 4 of the 4 different words of the references (100% of all words)", 1.0),
        (["the"], "lacks 3 of the 4 different words of the references (75% of all words)", 0.75),
        (["turn", "the"], "lacks 2 of the 4 different words of the references (50% of all words)", 0.5),
    ],
)
def test_a_language_model_without_most_of_the_words_is_warned_of(
    evaluated: Any, tmp_path: Path, words: list[str], lacks: str, share: float
) -> None:
    path = arpa(tmp_path, words)
    warned, found = evaluated("--lm", path)
    assert f"tutti: warning: {path} {lacks}: they cannot be recognized" in warned
    assert "tutti lm train --mix shipped:0.7" in warned
    assert found["lm_unknown_words"] == share


def test_a_language_model_with_nearly_all_words_is_not(evaluated: Any, tmp_path: Path) -> None:
    warned, found = evaluated("--lm", arpa(tmp_path, ["turn", "the", "heating"]))
    assert "warning" not in warned
    assert found["lm_unknown_words"] == 0.25


def test_capitals_and_marks_of_references_are_no_words_that_a_model_lacks(
    evaluated: Any, manifest: Path, tmp_path: Path
) -> None:
    manifest.write_text(json.dumps({"audio": "a.wav", "text": "Turn the HEATING down!", "duration": 1.0}))
    warned, found = evaluated("--lm", arpa(tmp_path, SAID.split()))
    assert "warning" not in warned
    assert found["lm_unknown_words"] == 0


def test_a_file_is_warned_of_once_however_many_combinations_are_run(evaluated: Any, tmp_path: Path) -> None:
    warned, _ = evaluated("--lm", arpa(tmp_path, ["yes"]), "--precision", "fp32,int8")
    assert warned.count("warning") == 1


def test_greedy_decoding_and_the_shipped_model_are_not_warned_of(evaluated: Any, tmp_path: Path) -> None:
    warned, found = evaluated("--lm", arpa(tmp_path, ["yes"]), "--decoder", "greedy")
    assert "warning" not in warned
    assert "lm_unknown_words" not in found
    warned, found = evaluated()
    assert "warning" not in warned
    assert "lm_unknown_words" not in found
