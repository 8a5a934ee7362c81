"""Shipped recordings as raw audio of 16 kHz, and their texts."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import soundfile

from tests.support.audio.speech import samples

Spoken = Callable[..., str]
RATE_HZ = 16_000
BYTES_PER_S = 2 * RATE_HZ
_TEXTS = {utterance.audio.stem: utterance.text for utterance in samples()}
_FILES = {utterance.audio.stem: utterance.audio for utterance in samples()}

FILES = {name: str(path) for name, path in _FILES.items()}


LOUD, TRAILING = 330, 4_800  # samples after the last loud one are less silence than ends a segment


def audio(*parts: str | float) -> bytes:
    """Return recordings, by name, joined with seconds of silence."""
    joined = [_silence(part) if isinstance(part, float) else _recording(part) for part in parts]
    return np.concatenate(joined).tobytes()


def text(*names: str) -> str:
    """Return the texts of recordings, joined."""
    return " ".join(_TEXTS[name] for name in names)


def plain(said: str) -> str:
    """Return a text in lower case without punctuation."""
    return " ".join(re.findall(r"[a-z']+", said.lower()))


def _recording(name: str) -> np.ndarray:
    pcm, rate_hz = soundfile.read(_FILES[name], dtype="int16")
    assert rate_hz == RATE_HZ
    pcm = np.asarray(pcm)
    loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > LOUD)
    return pcm[: loud[-1] + TRAILING]


def _silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.int16)
