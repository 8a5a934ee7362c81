"""Running digest of the audio that a stream received, for its receipts. Pure.

The audio is its samples after decoding, at the stream's rate: 16 bits, little-endian, channels interleaved, before they
are mixed or resampled. It is hashed in blocks, each after the digest of what precedes it, so that a ticket can carry
the digest: `digest_of` is the definition.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from server.audio.pcm import PCM
from server.recognition.saved_state import SavedDigest
from server.recognition.steps import StepTag, Work

BLOCK = 4_000  # samples of each channel; a resumed client sends this much again, at most: half a second at 8 kHz
SAMPLE_BYTES = 2


class AudioMark(NamedTuple):
    """Audio that a final depends on: samples `begin` to `end` (exclusive) of each channel, and their digest."""

    begin: int
    end: int
    digest: bytes


def digest_of(audio: bytes, channels: int = 1, before: bytes = b"") -> bytes:
    """Return the digest of interleaved 16-bit samples; `before` is that of the whole blocks before them."""
    size, digest = BLOCK * SAMPLE_BYTES * channels, before
    for start in range(0, len(audio), size):
        digest = hashlib.sha256(digest + audio[start : start + size]).digest()
    return digest or hashlib.sha256().digest()


class AudioDigest:
    """Hashes the audio of a stream once its steps are answered, and returns the digest at the end of any of them."""

    def __init__(self, channels: int, streams: int, sample_rate: int) -> None:
        """`channels` are those of the audio, `streams` of them are recognized by themselves."""
        self._channels = channels
        self._frame_bytes = SAMPLE_BYTES * channels
        self._rate = sample_rate
        self._begin = self._hashed = self._received = 0  # samples of each channel
        self._chain = b""  # digest up to `_hashed`, the end of a block
        self._pending: list[bytes] = [b""]  # what came after it; arrays, until they are joined
        self._skip = 0  # samples received again that were hashed before the state was saved
        self._open: list[deque[int]] = [deque() for _ in range(streams)]  # ends of steps on their way
        self._sent = 0  # end of the last of them
        self._answered = [0] * streams

    def receive(self, samples: PCM) -> None:
        """Take (S, C) int16."""
        if self._skip:
            skipped = min(self._skip, len(samples))
            self._skip, samples = self._skip - skipped, samples[skipped:]
        self._pending.append(cast(bytes, np.ascontiguousarray(samples, "<i2")))  # joined as bytes, without a copy now
        self._received += len(samples)

    def send(self, work: Sequence[Work]) -> None:
        """Note the steps that go to the engine."""
        for piece in work:
            if isinstance(piece.tag, StepTag):
                end = round(piece.tag.end_s * self._rate)
                self._open[piece.channel].append(end)
                self._sent = max(self._sent, end)

    def answered(self, channel: int) -> int:
        """Note that this channel's oldest step is answered; return its end, for `mark`."""
        self._answered[channel] = end = self._open[channel].popleft()
        if end - self._hashed >= BLOCK:
            hashed, self._chain = self._whole_blocks(min(self._answered))
            self._drop(hashed)
        return end

    def mark(self, end: int | None = None) -> AudioMark:
        """Return the audio up to the end of a step that is answered now, or of all that was received."""
        end = self._received if end is None else end
        audio = self._audio(max(0, end - self._hashed))
        return AudioMark(self._begin, end, digest_of(audio, self._channels, self._chain))

    def start_at(self, sample: int) -> None:
        """Begin at a later sample of the stream; no audio was received."""
        self._begin = self._hashed = self._received = sample

    def saved(self) -> SavedDigest:
        """Return the end of the last block that is complete within the steps sent so far."""
        return SavedDigest(self._begin, *self._whole_blocks(self._sent))

    def restore(self, saved: SavedDigest, received: int) -> None:
        """Continue at a saved position; audio comes from sample `received` on, at or before it."""
        self._begin, self._hashed, self._chain = saved.begin, saved.end, saved.chain
        self._received = saved.end
        self._skip = saved.end - received

    def _whole_blocks(self, end: int) -> tuple[int, bytes]:
        """Return the end of the last whole block up to a sample, and the digest there."""
        count = max(0, end - self._hashed) // BLOCK * BLOCK
        if not count:
            return self._hashed, self._chain
        return self._hashed + count, digest_of(self._audio(count), self._channels, self._chain)

    def _drop(self, hashed: int) -> None:
        """Forget the samples up to a block's end."""
        if hashed > self._hashed:
            self._pending = [self._pending[0][(hashed - self._hashed) * self._frame_bytes :]]
            self._hashed = hashed

    def _audio(self, count: int) -> bytes:
        """Return the first samples after the hashed ones."""
        if len(self._pending) != 1:
            self._pending = [b"".join(self._pending)]
        return self._pending[0][: count * self._frame_bytes]
