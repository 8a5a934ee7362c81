"""`read_pcm`: files become the PCM that evaluation in process uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from model.recordings import read_pcm as read_pcm_in_process
from tutti_asr_client.errors import AudioError
from tutti_asr_client.files.audio import read_pcm

RNG = np.random.default_rng(7)

FORMATS = [
    ("wav", "PCM_16", 16000),
    ("wav", "FLOAT", 44100),
    ("flac", "PCM_24", 48000),
    ("ogg", "VORBIS", 22050),
    ("ogg", "OPUS", 48000),
    ("mp3", "MPEG_LAYER_III", 32000),
]


def tone(rate: int, *, channels: int = 1, seconds: float = 0.5) -> NDArray[np.float64]:
    """A quiet 440 Hz tone with noise, (S, channels), and a different level in each channel."""
    times = np.arange(round(rate * seconds)) / rate
    mono = 0.3 * np.sin(2 * np.pi * 440 * times) + 0.01 * RNG.standard_normal(len(times))
    return np.stack([mono / (channel + 1) for channel in range(channels)], axis=1)


@pytest.mark.parametrize(("suffix", "subtype", "rate"), FORMATS)
def test_a_file_of_each_format_is_read_as_in_process(tmp_path: Path, suffix: str, subtype: str, rate: int) -> None:
    path = tmp_path / f"tone.{suffix}"
    soundfile.write(path, tone(rate, channels=2), rate, subtype=subtype)
    pcm = read_pcm(path, 16000)
    assert pcm.dtype == np.int16
    assert abs(len(pcm) - 8000) < 1200  # codecs add or drop a little
    assert 3000 < int(np.abs(pcm).max()) < 16000
    np.testing.assert_array_equal(pcm, read_pcm_in_process(path, 16000))


def test_channels_are_averaged_and_full_scale_does_not_wrap(tmp_path: Path) -> None:
    path = tmp_path / "loud.wav"
    soundfile.write(path, np.array([[1.5, 1.5], [-1.5, -1.5], [1.0, -1.0], [0.5, 0.0]]), 16000, subtype="FLOAT")
    assert read_pcm(path).tolist() == [32767, -32768, 0, 8192]


def test_16_bit_files_are_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "exact.wav"
    samples = np.array([-32768, -32767, -1, 0, 1, 32766, 32767], dtype=np.int16)
    soundfile.write(path, samples, 16000)
    np.testing.assert_array_equal(read_pcm(path), samples)


def test_other_rates_are_resampled(tmp_path: Path) -> None:
    path = tmp_path / "phone.wav"
    soundfile.write(path, tone(8000), 8000)
    assert len(read_pcm(path, 16000)) == 8000
    assert len(read_pcm(path, 8000)) == 4000


@pytest.mark.parametrize("content", [None, b"", b"this is not audio at all" * 20])
def test_a_file_that_is_not_audio_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broken.wav"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AudioError, match=r"broken\.wav"):
        read_pcm(path)


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.wav"
    soundfile.write(path, np.zeros((0, 1)), 16000)
    with pytest.raises(AudioError, match="no audio"):
        read_pcm(path)
