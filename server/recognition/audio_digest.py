"""Running digest of the audio that a stream received, for its receipts. Pure.

The audio is its samples after decoding, at the stream's rate: 16 bits, little-endian, channels interleaved, before they
are mixed or resampled. It is hashed in blocks; the hash of a block includes the digest of all earlier blocks, so that a
ticket can contain the digest. `digest_of` is the definition.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from server.audio.pcm import PCM
from server.recognition.saved_state import SavedDigest

BLOCK = 4_000  # samples per channel; a resumed client resends at most this much: half a second at 8 kHz
SAMPLE_BYTES = 2
PIECE_BYTES = 2_000  # for more, hashlib releases the interpreter lock, which costs more than the hashing


class AudioMark(NamedTuple):
    """Audio that a final depends on: samples `begin` to `end` (exclusive) of each channel, and their digest."""

    begin: int
    end: int
    digest: bytes


def digest_of(audio: bytes, channels: int = 1, before: bytes = b"") -> bytes:
    """Return the digest of interleaved 16-bit samples; `before` is that of the whole blocks before them."""
    size, digest = BLOCK * SAMPLE_BYTES * channels, before
    for start in range(0, len(audio), size):
        block = hashlib.sha256(digest)
        for at in range(start, min(start + size, len(audio)), PIECE_BYTES):
            block.update(audio[at : min(at + PIECE_BYTES, start + size)])
        digest = block.digest()
    return digest or hashlib.sha256().digest()


class AudioDigest:
    """Hashes a stream's audio as its steps are answered; returns the digest at the end of any step."""

    def __init__(self, channels: int, streams: int, sample_rate: int) -> None:
        """`channels`: channels of the audio; `streams`: number of them that are recognized separately."""
        self._channels = channels
        self._frame_bytes = SAMPLE_BYTES * channels
        self._rate = sample_rate
        self._begin = self._hashed = self._received = 0  # samples of each channel
        self._chain = b""  # digest up to `_hashed`, the end of a block
        self._pending: list[Any] = [b""]  # audio after it: bytes, then arrays until they are joined
        self._skip = 0  # samples received again that were hashed before the state was saved
        self._due_s = BLOCK / sample_rate  # end of the next block
        self._answered_s = [0.0] * streams

    def receive(self, samples: PCM) -> None:
        """Take (S, C) int16."""
        if self._skip:
            skipped = min(self._skip, len(samples))
            self._skip, samples = self._skip - skipped, samples[skipped:]
        self._pending.append(samples)
        self._received += len(samples)

    def answered(self, channel: int, end_s: float) -> None:
        """Record that a channel's steps are answered up to this time; its later marks do not precede it."""
        self._answered_s[channel] = end_s
        if end_s >= self._due_s:
            hashed, self._chain = self._whole_blocks(round(min(self._answered_s) * self._rate))
            if hashed > self._hashed:
                self._pending = [self._pending[0][(hashed - self._hashed) * self._frame_bytes :]]
                self._continue_at(hashed)

    def mark(self, end_s: float | None = None) -> AudioMark:
        """Return the audio up to the end of a step that is answered now, or all that was received."""
        end = self._received if end_s is None else round(end_s * self._rate)
        audio = self._audio(max(0, end - self._hashed))
        return AudioMark(self._begin, end, digest_of(audio, self._channels, self._chain))

    def start_at(self, sample: int) -> None:
        """Begin at a later sample of the stream; no audio was received."""
        self._begin = self._received = sample
        self._continue_at(sample)

    def saved(self, end: int) -> SavedDigest:
        """Return the end of the last block that is complete before a sample; no later mark is before that."""
        return SavedDigest(self._begin, *self._whole_blocks(end))

    def restore(self, saved: SavedDigest, received: int) -> None:
        """Continue at a saved position; audio comes from sample `received` on, at or before it."""
        self._begin, self._chain, self._received = saved.begin, saved.chain, saved.end
        self._continue_at(saved.end)
        self._skip = saved.end - received

    def _whole_blocks(self, end: int) -> tuple[int, bytes]:
        """Return the end of the last whole block up to a sample, and the digest there."""
        count = max(0, end - self._hashed) // BLOCK * BLOCK
        if not count:
            return self._hashed, self._chain
        return self._hashed + count, digest_of(self._audio(count), self._channels, self._chain)

    def _continue_at(self, hashed: int) -> None:
        self._hashed, self._due_s = hashed, (hashed + BLOCK) / self._rate

    def _audio(self, count: int) -> bytes:
        """Return the first samples after the hashed ones."""
        if len(self._pending) != 1:
            self._pending = [b"".join([self._pending[0], *map(_bytes_of, self._pending[1:])])]
        audio: bytes = self._pending[0]
        return audio[: count * self._frame_bytes]


def _bytes_of(samples: PCM) -> memoryview:
    return np.ascontiguousarray(samples, "<i2").data
