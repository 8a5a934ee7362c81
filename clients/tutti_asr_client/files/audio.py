"""Reads audio files as 16-bit mono PCM at a given rate.

In-process evaluation uses the same function, so that it gets exactly the samples that are sent to a server.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from tutti_asr_client.errors import AudioError

FULL_SCALE = 32768
"""Integer value of the float sample 1.0; with it 16-bit files are read unchanged."""


def read_pcm(path: Path, sample_rate: int = 16000) -> NDArray[np.int16]:
    """Return (S,) int16 mono samples of a wav, flac, ogg (Opus, Vorbis) or mp3 file at `sample_rate` Hz.

    Raises:
        AudioError: no such file, not readable as audio, or no samples in it.
    """
    if not path.is_file():
        raise AudioError(path, "no such file")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)  # (S, channels)
    except (soundfile.LibsndfileError, OSError) as error:
        raise AudioError(path, f"cannot be read as audio ({error})") from error
    if not len(samples):
        raise AudioError(path, "contains no audio")
    mono = samples.mean(axis=1)  # (S,)
    if rate != sample_rate:
        mono = soxr.resample(mono, rate, sample_rate, quality="HQ")
    pcm = np.clip(np.rint(mono * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1)
    return np.asarray(pcm, dtype=np.int16)
