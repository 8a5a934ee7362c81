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

from tutti_asr_client.errors import AudioError

FULL_SCALE = 32768
"""What 1.0 of a float sample stands for: 16-bit files come out as they are."""


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
    pcm = np.clip(np.rint(mono * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1)
    return np.asarray(pcm, dtype=np.int16)
