"""The search for decoding weights."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from typer.testing import CliRunner

from model.ctc.greedy import GreedyDecoder
from model.ctc.interface import LogProbs
from model.ctc.weights import DecodingWeights
from model.ctc.words import Word
from model.recordings import Utterance
from model.torch_model import TorchModel
from model.torch_network.checkpoint import save_network
from tutti_asr_lab.commands.lm import lm
from tutti_asr_lab.training.evaluation.outputs import RecordingOutput, decode, outputs_of
from tutti_asr_lab.training.language_model.tune import RANGES, propose, search

torch.set_num_threads(1)


IDEAL = DecodingWeights(lm_weight=0.9, word_bonus=1.5, unknown_cost=9.0, unknown_letter_cost=1.0)


class Sensitive:
    """Decoder whose number of errors grows with the distance of its weights from the ideal, up to 20 words."""

    def __init__(self, weights: DecodingWeights) -> None:
        self._off = sum(
            abs(getattr(weights, name) - getattr(IDEAL, name)) / (high - low) for name, (low, high) in RANGES.items()
        )

    def start(self, skip_frames: int) -> int:
        return skip_frames

    def advance(self, states: Any, log_probs: LogProbs) -> None:
        assert log_probs.ndim == 3

    def take(self, state: Any, count: int | None = None) -> tuple[Word, ...]:
        wrong = int(20 * min(self._off, 1.0))
        return tuple(Word("wrong" if i < wrong else "right", 0.0, 0.0, 1.0) for i in range(20))


def output_for(source: str, text: str = "right " * 20) -> RecordingOutput:
    return RecordingOutput(Utterance(Path("x"), text.strip(), source, "s", 1.0), np.zeros((3, 4), np.float32))


def test_the_search_approaches_the_best_weights_and_reports_improvements() -> None:
    reported = []
    with ThreadPoolExecutor(2) as executor:
        done = search(
            [output_for("one"), output_for("two")],
            Sensitive,  # type: ignore[arg-type]
            DecodingWeights(),
            120,
            "mean",
            executor=executor,
            report=reported.append,
        )
    assert len(done) == 120
    assert reported[0].weights == DecodingWeights()
    losses = [trial.loss("mean") for trial in reported]
    assert losses == sorted(losses, reverse=True)
    assert reported[-1] == done[0]
    assert done[0].loss("mean")[0] <= 0.1 < losses[0][0]


def test_proposals_stay_within_their_ranges() -> None:
    rng = Random(0)
    for step in range(200):
        weights = propose(DecodingWeights(lm_weight=1.99, word_bonus=-1.9), step / 200, rng)
        assert all(low <= getattr(weights, name) <= high for name, (low, high) in RANGES.items())
        assert weights.keyterm_boost == DecodingWeights().keyterm_boost


def test_the_mean_objective_weighs_sources_equally_and_the_pooled_one_by_words() -> None:
    rows = [output_for("long"), output_for("short", "wrong")]
    with ThreadPoolExecutor(1) as executor:
        (trial,) = search(rows, Sensitive, IDEAL, 1, "mean", executor=executor)  # type: ignore[arg-type]
    assert trial.sources["long"].wer == 0.0
    assert trial.loss("mean")[0] == pytest.approx(trial.sources["short"].wer / 2)
    assert trial.loss("pooled")[0] == pytest.approx(20 / 21)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(5)
    rows = []
    for i, seconds in enumerate((0.5, 1.3, 0.9)):
        soundfile.write(folder / f"{i}.wav", rng.normal(0, 0.1, int(16_000 * seconds)), 16_000)
        rows.append({"audio": f"{i}.wav", "text": "a b", "source": f"s{i % 2}", "duration": seconds})
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_recordings_in_a_batch_have_the_same_log_probs_as_alone(recordings: Path) -> None:
    from model.recordings import read_manifest

    model = TorchModel.random(precision="fp32")
    rows = read_manifest(recordings)
    together = outputs_of(model, rows)
    for row, item in zip(rows, together, strict=True):
        (alone,) = outputs_of(model, [row])
        assert item.utterance == row
        assert item.log_probs.shape == alone.log_probs.shape
        assert np.allclose(item.log_probs, alone.log_probs, atol=1e-4)
    greedy = GreedyDecoder(model.config.vocabulary, model.config.frame_s)
    with ThreadPoolExecutor(2) as executor:
        assert {name: s.utterances for name, s in decode(greedy, together, executor).items()} == {"s0": 2, "s1": 1}


def test_the_command_writes_the_weights_next_to_the_model(recordings: Path, tmp_path: Path) -> None:

    model = TorchModel.random(precision="fp32")
    save_network(model.network, tmp_path / "model.safetensors")
    (tmp_path / "text.txt").write_text("a b\nb a\n")
    runner = CliRunner()
    assert runner.invoke(lm, ["train", str(tmp_path / "text.txt"), "--out", str(tmp_path / "ab.arpa")]).exit_code == 0
    options = {
        "--manifest": recordings,
        "--lm": tmp_path / "ab.arpa",
        "--model": tmp_path / "model.safetensors",
        "--trials": 3,
        "--beams": 4,
        "--precision": "fp32",
        "--objective": "pooled",
    }
    result = runner.invoke(lm, ["tune", *(str(part) for option in options.items() for part in option)])
    assert result.exit_code == 0, result.output
    written = tmp_path / "ab.weights.json"
    assert DecodingWeights.load(written)
    assert f"wrote {written}" in result.output.replace("\n", "")
    assert len([line for line in result.output.splitlines() if line.strip().startswith("lm ")]) == 3
    assert "the best on part B" in result.output
