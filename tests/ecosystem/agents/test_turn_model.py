"""Smart Turn as pipecat-ai ships it: the same features to the bit of float32 rounding, and the same probabilities."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from model.recordings import read_pcm
from model.turn_ends.turn_model import TurnModel
from model.turn_ends.whisper_features import SAMPLE_RATE, SAMPLES, log_mel
from tests.ecosystem.driving import need
from tests.ecosystem.environments import python_of
from tests.support.audio.speech import SAMPLES as RECORDINGS

PROGRAM = """
import asyncio, sys
import numpy as np
from pipecat.audio.turn.smart_turn import data
from pipecat.audio.turn.smart_turn._whisper_features import compute_whisper_log_mel_features
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
audio = np.load(sys.argv[1])
analyzer = LocalSmartTurnAnalyzerV3(sample_rate=16000)
features, answers = [], []
for pcm in audio:
    samples = pcm.astype(np.float32) / 32768
    features.append(compute_whisper_log_mel_features(samples))
    answers.append(analyzer._predict_endpoint(samples)["probability"])
np.savez(sys.argv[2], features=features, answers=answers)
print(next(iter(data.__path__)))
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray, np.ndarray]:
    """Return pipecat's graph, three windows of speech, and pipecat's features and answers about them."""
    folder = tmp_path_factory.mktemp("turns")
    recordings = [read_pcm(path, SAMPLE_RATE)[-SAMPLES:] for path in sorted(RECORDINGS.parent.glob("*.flac"))[:3]]
    windows = np.stack([np.concatenate([np.zeros(SAMPLES - len(pcm), np.int16), pcm]) for pcm in recordings])
    np.save(folder / "audio.npy", windows)
    command = [python_of(need("pipecat")), "-c", PROGRAM, folder / "audio.npy", folder / "found.npz"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found = np.load(folder / "found.npz")
    graph = Path(ran.stdout.splitlines()[-1]) / "smart-turn-v3.2-cpu.onnx"
    return graph, windows, found["features"], found["answers"]


def test_the_features_are_those_of_pipecat(theirs: tuple[Path, np.ndarray, np.ndarray, np.ndarray]) -> None:
    _, windows, features, _ = theirs
    for pcm, expected in zip(windows, features, strict=True):
        np.testing.assert_allclose(log_mel(pcm), expected, atol=1e-6)


def test_the_probabilities_are_those_of_pipecat(theirs: tuple[Path, np.ndarray, np.ndarray, np.ndarray]) -> None:
    graph, windows, _, answers = theirs
    model = TurnModel.load(graph)
    for pcm, expected in zip(windows, answers, strict=True):
        assert model.probability(pcm) == pytest.approx(expected, abs=1e-5)
