"""Voice conversion: pitch and formants change, times and texts stay."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from model.errors import AudioError
from model.recordings import Utterance, read_manifest
from tutti_asr_lab.training.synthesis.voice_conversion import (
    PITCH_HZ,
    SAMPLE_RATE_HZ,
    Options,
    Target,
    convert,
    convert_all,
    median_pitch,
    stretched,
    without_silence,
)

Floats = NDArray[np.float64]


def vowel(pitch_hz: float, formant_hz: float = 1_000.0, seconds: float = 0.6) -> Floats:
    """Harmonics of a pitch, louder around one formant; a tenth of a second of silence before and after."""
    times = np.arange(int(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    harmonics = np.arange(1, int(7_000 / pitch_hz)) * pitch_hz
    loud = np.exp(-(((harmonics - formant_hz) / 300) ** 2)) + 0.01
    sound = (loud[:, None] * np.sin(2 * np.pi * harmonics[:, None] * times)).sum(axis=0)
    return np.pad(0.5 * sound / np.abs(sound).max(), SAMPLE_RATE_HZ // 10)


def whisper(seconds: float = 0.6) -> Floats:
    return 0.1 * np.random.default_rng(1).standard_normal(int(seconds * SAMPLE_RATE_HZ))


def loudest_hz(sound: Floats) -> float:
    """Centroid of the power between 300 and 3,000 Hz."""
    power = np.abs(np.fft.rfft(sound)) ** 2
    hz = np.fft.rfftfreq(len(sound), 1 / SAMPLE_RATE_HZ)
    band = (hz > 300) & (hz < 3_000)
    return float((hz * power)[band].sum() / power[band].sum())


def put(path: Path, sound: Floats) -> Path:
    soundfile.write(path, sound, SAMPLE_RATE_HZ, subtype="PCM_16")
    return path


@pytest.mark.parametrize("target", [Target(110.0, 0.85), Target(260.0, 1.15), Target(140.0, 0.9, tempo=1.5)])
def test_pitch_formants_and_tempo_are_those_asked_for(target: Target, tmp_path: Path) -> None:
    sound = vowel(180.0)
    made = convert(sound, target)
    assert len(made) == round(len(sound) / target.tempo)
    assert median_pitch([put(tmp_path / "made.wav", made)]) == pytest.approx(target.pitch_hz, rel=0.03)
    assert loudest_hz(made) / loudest_hz(sound) == pytest.approx(target.formants, rel=0.06)
    assert np.abs(made).max() == pytest.approx(np.abs(sound).max(), rel=1e-6)
    assert np.abs(made[:800]).max() < 0.02  # the silence at the start stays


def test_unvoiced_audio_is_not_changed() -> None:
    silence = np.zeros(SAMPLE_RATE_HZ)
    assert convert(silence, Target(120.0, 0.9)) is silence


def test_the_peak_of_a_spectrum_is_scaled_by_the_factor() -> None:
    spectra = np.ones((2, 513))
    spectra[:, 100] = 50.0
    assert stretched(spectra, 1.2).argmax(axis=1).tolist() == [120, 120]
    assert stretched(spectra, 0.8).argmax(axis=1).tolist() == [80, 80]
    assert np.allclose(stretched(spectra, 1.0), spectra)


def test_low_voices_have_low_formants() -> None:
    rng = Random(1)
    drawn = [Target.drawn(180.0, (1.0, 1.6), rng) for _ in range(300)]
    assert (min(t.tempo for t in drawn), max(t.tempo for t in drawn)) == pytest.approx((1.0, 1.6), abs=0.02)
    pitch, formants = np.array([[t.pitch_hz, t.formants] for t in drawn]).T
    assert (pitch.min(), pitch.max()) == pytest.approx(PITCH_HZ, rel=0.05)
    assert np.corrcoef(np.log(pitch), np.log(formants))[0, 1] > 0.8
    assert formants[np.abs(pitch - 180) < 8].mean() == pytest.approx(1.0, abs=0.02)


def test_silence_around_a_word_is_trimmed_and_the_word_kept() -> None:
    word = vowel(120.0)  # 0.1 s of silence on either side
    assert len(without_silence(word)) == pytest.approx(0.65 * SAMPLE_RATE_HZ, abs=0.02 * SAMPLE_RATE_HZ)
    silence = np.zeros(100)
    assert without_silence(silence) is silence


@pytest.fixture
def said(tmp_path: Path) -> list[Utterance]:
    """Two speakers and one who whispers, three recordings each."""
    sounds = {"high": vowel(240.0), "low": vowel(120.0), "whisper": whisper()}
    rows = [
        {"audio": put(tmp_path / f"{who}{n}.wav", sound).name, "text": f"{who}{n}", "source": "said", "speaker": who}
        for n in range(3)
        for who, sound in sounds.items()
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return read_manifest(tmp_path / "said.jsonl")


def test_files_are_the_same_for_any_number_of_processes_and_whispers_are_skipped(
    said: list[Utterance], tmp_path: Path
) -> None:
    made = [read_manifest(convert_all(said, tmp_path / str(jobs), Options(times=2, seed=3), jobs)) for jobs in (1, 2)]
    assert [u.text for u in made[0]] == ["high0", "high1", "high2"] * 2 + ["low0", "low1", "low2"] * 2
    assert {u.source for u in made[0]} == {"said_converted"}
    assert len({u.speaker for u in made[0]}) == 12
    for one, two in zip(*made, strict=True):
        assert one.audio.read_bytes() == two.audio.read_bytes()
        assert one.duration_s == pytest.approx(0.8, abs=1e-3)


def test_each_recording_is_joined_once_with_others_of_its_speaker_and_faster(
    said: list[Utterance], tmp_path: Path
) -> None:
    options = Options(times=4, tempo=(2.0, 2.0), joined=3)
    made = read_manifest(convert_all(said, tmp_path / "out", options, jobs=1))
    texts = [u.text.split() for u in made]
    assert Counter(word for text in texts for word in text) == {
        f"{who}{n}": 4 for who in ("high", "low") for n in range(3)
    }
    assert all(len({word[:-1] for word in text}) == 1 for text in texts)
    assert max(map(len, texts)) == 3
    for utterance, text in zip(made, texts, strict=True):
        silences = 0.2 if len(text) == 1 else 0.05 * len(text)
        assert utterance.duration_s == pytest.approx((0.6 * len(text) + silences) / 2, abs=0.02 * len(text))


def test_recordings_without_voiced_speech_are_an_error(said: list[Utterance], tmp_path: Path) -> None:
    whispered = [u for u in said if u.speaker == "whisper"]
    with pytest.raises(AudioError, match="none of 3 recordings has voiced speech"):
        convert_all(whispered, tmp_path / "out", Options(), jobs=1)


@pytest.mark.parametrize("wrong", [{"times": 0}, {"joined": 0}, {"tempo": (0.0, 1.0)}, {"tempo": (1.5, 1.0)}])
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|lower one first"):
        Options(**wrong)
