"""Recordings as files to upload, and the text of the answer."""

from __future__ import annotations

import io

import numpy as np
import soundfile


def encoded(audio: np.ndarray, container: str, rate: int = 16_000, subtype: str | None = None) -> bytes:
    """A recording as a file."""
    file = io.BytesIO()
    soundfile.write(file, audio, rate, format=container, subtype=subtype)
    return file.getvalue()


def said(answer: dict, channel: int = 0) -> str:
    """The text of one channel."""
    text: str = answer["results"]["channels"][channel]["alternatives"][0]["transcript"]
    return text
