"""Sounds that a Mandarin network gets wrong, without a search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_networks import small_network

from model import checkpoint
from model.errors import CheckpointError
from model.evaluation.sounds import likeliest, measure, rates
from model.recordings import Utterance, read_manifest

SAMPLES = Path(__file__).parents[3] / "model" / "samples" / "mandarin.jsonl"


def utterance(text: str, source: str = "news") -> Utterance:
    return Utterance(Path("x.wav"), text, source, "x", 1.0)


def test_repeats_are_one_sound_unless_a_blank_is_between_them() -> None:
    path = [0, 1, 1, 0, 1, 2, 2, 0]
    assert likeliest(np.log(np.eye(3)[path] + 1e-3), ("n", "i3")) == ["n", "n", "i3"]


def test_a_wrong_tone_counts_with_tones_alone_and_sources_are_apart() -> None:
    said = [utterance("ni3 hao3"), utterance("ni3", "digits")]
    assert rates(said, [["n", "i4", "h", "ao3"], ["n", "i3"]]) == {"digits": (0.0, 0.0), "news": (0.25, 0.0)}
    assert rates(said[:1], [["n", "i3"]]) == {"news": (0.5, 0.5)}


def test_the_shipped_model_hears_a_shipped_recording() -> None:
    weather = next(u for u in read_manifest(SAMPLES) if u.audio.stem == "mandarin_weather")
    said = Utterance(weather.audio, "jin1 tian1 tian1 qi4 hen3 hao3", "samples", "x", weather.duration_s)
    toned, toneless = measure(checkpoint.shipped_for("zh"), [said])["samples"]
    assert toneless <= toned < 0.3


def test_a_checkpoint_without_sounds_is_refused(tmp_path: Path) -> None:
    checkpoint.save(small_network(), tmp_path / "letters.safetensors")
    with pytest.raises(CheckpointError, match="no sounds"):
        measure(tmp_path / "letters.safetensors", [])
