"""A turn model: Whisper's features of the last 8 s, and graphs of another form, which are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.errors import CheckpointError
from model.turn_ends.turn_model import TurnModel
from model.turn_ends.whisper_features import BANDS, FRAMES, HOP, RANGE, SAMPLES, WINDOW, _filters, log_mel
from tests.support.networks.turn_model import write_turn_model


def audio(samples: int) -> np.ndarray:
    return np.random.default_rng(5).normal(200, 2_000, samples).astype(np.int16)


@pytest.mark.parametrize("samples", [0, 1_000, SAMPLES, SAMPLES + 5_000])
def test_the_answer_is_that_of_the_features_of_the_last_eight_seconds(tmp_path: Path, samples: int) -> None:
    model = TurnModel.load(write_turn_model(tmp_path / "turns.onnx"))
    pcm = audio(samples)
    expected = 1 / (1 + np.exp(-log_mel(pcm[-SAMPLES:]).mean(dtype=np.float64)))
    assert model.probability(pcm) == pytest.approx(expected, abs=1e-5)


def test_the_features_are_those_of_another_spectrum() -> None:
    pcm = audio(50_000)
    wave = torch.zeros(SAMPLES, dtype=torch.float64)
    wave[-len(pcm) :] = torch.from_numpy(pcm / 32_768)
    wave = (wave - wave.mean()) / (wave.var(correction=0) + 1e-7).sqrt()
    window = torch.hann_window(WINDOW, dtype=torch.float64)
    spectrum = torch.stft(wave, WINDOW, HOP, window=window, center=True, pad_mode="reflect", return_complex=True)
    mel = np.maximum(_filters().T @ spectrum[:, :-1].abs().square().numpy(), 1e-10)
    logs = np.log10(mel)
    expected = (np.maximum(logs, logs.max() - RANGE) + 4) / 4
    features = log_mel(pcm)
    assert features.shape == (BANDS, FRAMES)
    np.testing.assert_allclose(features, expected, atol=2e-5)


def test_a_band_of_the_filters_has_the_area_of_slaneys() -> None:
    areas = _filters().sum(axis=0) * (8_000 / (WINDOW // 2))
    np.testing.assert_allclose(areas, 1.0, atol=0.25)  # the lowest bands hold one or two bins
    np.testing.assert_allclose(areas[41:], 1.0, atol=0.03)


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"name": "audio"}, r"input is audio .*expected input_features"),
        ({"frames": 3_000}, "80, 3000.*expected input_features .*80, 800"),
        ({"bands": 128}, "128, 800"),
        ({"scale": 50.0}, "expected a probability"),
    ],
)
def test_a_graph_of_another_form_is_refused(tmp_path: Path, form: dict[str, object], why: str) -> None:
    path = write_turn_model(tmp_path / "other.onnx", **form)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=why):
        TurnModel.load(path)


def test_a_missing_file_and_one_that_is_no_graph_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        TurnModel.load(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no graph")
    with pytest.raises(CheckpointError, match=r"text\.onnx"):
        TurnModel.load(tmp_path / "text.onnx")
