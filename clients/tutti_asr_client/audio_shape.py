"""Raw audio encodings, and conversion between bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

SAMPLE_BYTES = {"linear16": 2, "linear32": 4, "mulaw": 1, "alaw": 1}
"""Bytes per sample of each raw encoding; only raw audio can be resumed at any position."""


@dataclass(frozen=True, slots=True)
class AudioShape:
    """Layout of a stream's samples; `transcripts` is the number of channels with separate results."""

    sample_rate: int = 16000
    sample_bytes: int = 2
    channels: int = 1
    transcripts: int = 1

    @classmethod
    def of(cls, sample_rate: int, encoding: str, channels: int, *, multichannel: bool) -> Self:
        """Return the layout of a raw encoding.

        Raises:
            ValueError: the encoding cannot be resumed at any position.
        """
        if encoding not in SAMPLE_BYTES:
            raise ValueError(f"encoding {encoding!r} cannot be resumed; must be one of {', '.join(SAMPLE_BYTES)}")
        return cls(sample_rate, SAMPLE_BYTES[encoding], channels, channels if multichannel else 1)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.sample_bytes * self.channels

    def seconds(self, size: int) -> float:
        """Return the duration of `size` bytes in seconds."""
        return size / (self.frame_bytes * self.sample_rate)

    def size(self, seconds: float) -> int:
        """Return the number of bytes of `seconds`, in whole samples."""
        return round(seconds * self.sample_rate) * self.frame_bytes
