"""Audio files as 16-bit mono PCM at a wanted rate.

Owns the conversion that a file goes through before it is sent; it is, sample for sample, the one
that evaluation in process uses, so that a transcript cannot differ because of it. Knows no socket.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from clients.errors import AudioError

FULL_SCALE = 32767
"""The largest 16-bit sample: 1.0 in a float file maps to it, and -1.0 to its negative."""


def read_pcm(path: Path, sample_rate: int = 16000) -> NDArray[np.int16]:
    """(S,) int16 mono samples of a wav, flac, ogg (Opus, Vorbis) or mp3 file at `sample_rate` Hz.

    Raises:
        AudioError: no such file, not audio that can be read, or no samples in it.
    """
    if not path.is_file():
        raise AudioError(path, "no such file")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)  # (S, channels)
    except (soundfile.LibsndfileError, OSError) as error:
        raise AudioError(path, f"cannot be read as audio ({error})") from error
    if not len(samples):
        raise AudioError(path, "holds no audio")
    mono = samples.mean(axis=1)  # (S,)
    if rate != sample_rate:
        mono = soxr.resample(mono, rate, sample_rate, quality="HQ")
    pcm = np.clip(np.round(mono * FULL_SCALE), -FULL_SCALE - 1, FULL_SCALE)
    return np.asarray(pcm, dtype=np.int16)
