"""What the bytes of a stream mean: raw encodings, and the way between bytes and seconds. Knows no stream."""

from __future__ import annotations

from dataclasses import dataclass

SAMPLE_BYTES = {"linear16": 2, "linear32": 4, "mulaw": 1, "alaw": 1}
"""Of the raw encodings, the only ones that can be taken up again in the middle."""


@dataclass(frozen=True, slots=True)
class AudioShape:
    """What the bytes of a stream mean; `transcripts` is the number of channels that have results of their own."""

    sample_rate: int = 16000
    sample_bytes: int = 2
    channels: int = 1
    transcripts: int = 1

    @property
    def frame_bytes(self) -> int:
        """One sample of every channel."""
        return self.sample_bytes * self.channels

    def seconds(self, size: int) -> float:
        """Time that so many bytes take."""
        return size / (self.frame_bytes * self.sample_rate)

    def size(self, seconds: float) -> int:
        """Bytes of so much time, in whole samples."""
        return round(seconds * self.sample_rate) * self.frame_bytes
