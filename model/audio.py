"""Recordings as 16-bit mono PCM at the model's rate."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from model.errors import AudioError

PCM = NDArray[np.int16]


def read_pcm(source: Path | BinaryIO, sample_rate: int = 16_000) -> PCM:
    """Decode wav, flac, ogg or mp3, mix down, resample. Returns (S,) int16. Raises: AudioError naming the file."""
    try:
        samples, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError, RuntimeError) as error:
        raise AudioError(f"cannot decode {source}: {error}") from error
    mono = samples.mean(axis=1)  # (S,)
    if rate != sample_rate:
        mono = soxr.resample(mono, rate, sample_rate, quality="HQ")
    return np.asarray(np.clip(np.rint(mono * 32768.0), -32768, 32767), np.int16)
