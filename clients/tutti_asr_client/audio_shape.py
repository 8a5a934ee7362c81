"""Raw audio encodings, and conversion between bytes and seconds. Knows no stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

SAMPLE_BYTES = {"linear16": 2, "linear32": 4, "mulaw": 1, "alaw": 1}
"""Bytes of a sample by raw encoding; only raw audio can be resumed in the middle."""


@dataclass(frozen=True, slots=True)
class AudioShape:
    """Layout of a stream's samples; `transcripts` is the number of channels with results of their own."""

    sample_rate: int = 16000
    sample_bytes: int = 2
    channels: int = 1
    transcripts: int = 1

    @classmethod
    def of(cls, sample_rate: int, encoding: str, channels: int, *, multichannel: bool) -> Self:
        """Layout of a raw encoding.

        Raises:
            ValueError: an encoding that cannot be resumed in the middle.
        """
        if encoding not in SAMPLE_BYTES:
            raise ValueError(f"{encoding} is none of {', '.join(SAMPLE_BYTES)}")
        return cls(sample_rate, SAMPLE_BYTES[encoding], channels, channels if multichannel else 1)

    @property
    def frame_bytes(self) -> int:
        """One sample of every channel."""
        return self.sample_bytes * self.channels

    def seconds(self, size: int) -> float:
        """Duration of `size` bytes."""
        return size / (self.frame_bytes * self.sample_rate)

    def size(self, seconds: float) -> int:
        """Bytes of `seconds`, in whole samples."""
        return round(seconds * self.sample_rate) * self.frame_bytes
