"""Phone error rates of a Mandarin network, without a search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model import checkpoint
from model.errors import CheckpointError
from model.recordings import Utterance, read_manifest
from model.torch_network.checkpoint import save_network
from tests.support.networks.small_networks import small_network
from tutti_asr_lab.training.evaluation.sounds import likeliest, measure, rates

SAMPLES = Path(__file__).parents[4] / "model" / "samples" / "mandarin.jsonl"


def utterance(text: str, source: str = "news") -> Utterance:
    return Utterance(Path("x.wav"), text, source, "x", 1.0)


def test_repeats_are_one_phone_unless_a_blank_is_between_them() -> None:
    path = [0, 1, 1, 0, 1, 2, 2, 0]
    assert likeliest(np.log(np.eye(3)[path] + 1e-3), ("n", "i3")) == ["n", "n", "i3"]


def test_a_wrong_tone_counts_only_in_the_rate_with_tones_and_sources_are_separate() -> None:
    said = [utterance("ni3 hao3"), utterance("ni3", "digits")]
    assert rates(said, [["n", "i4", "h", "ao3"], ["n", "i3"]]) == {"digits": (0.0, 0.0), "news": (0.25, 0.0)}
    assert rates(said[:1], [["n", "i3"]]) == {"news": (0.5, 0.5)}


SAID = {
    "mandarin_weather": "jin1 tian1 tian1 qi4 hen3 hao3",
    "mandarin_china": "ta1 shi4 zhong1 guo2 ren2",
    "mandarin_beijing": "wo3 men5 qu4 bei3 jing1",
    "mandarin_digits": "san1 qi1 jiu3 er4 ling2 wu3",
}


def test_the_shipped_model_recognizes_the_phones_of_the_shipped_recordings() -> None:
    recordings = [Utterance(u.audio, SAID[u.audio.stem], "samples", "x", u.duration_s) for u in read_manifest(SAMPLES)]
    assert len(recordings) == len(SAID)
    toned, toneless = measure(checkpoint.shipped_for("zh"), recordings)["samples"]
    assert toned < 0.3
    assert toneless < 0.1


def test_a_checkpoint_without_phone_outputs_is_refused(tmp_path: Path) -> None:
    save_network(small_network(), tmp_path / "letters.safetensors")
    with pytest.raises(CheckpointError, match="no phone outputs"):
        measure(tmp_path / "letters.safetensors", [])
