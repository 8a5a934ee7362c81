"""Decoder of raw samples: linear, float, mu-law and A-law to 16 bits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from server.audio.formats import Encoding, Losses
from server.audio.pcm import PCM

FULL_SCALE = 32_768.0  # the value of a float sample of 1.0


class PlainCodec(StrEnum):
    """Sample encodings; all are little-endian."""

    U8 = "u8"
    S16 = "s16"
    S24 = "s24"
    S32 = "s32"
    S64 = "s64"
    F32 = "f32"
    F64 = "f64"
    MULAW = "mulaw"
    ALAW = "alaw"


class PlainReader:
    """Decoder of interleaved samples; an incomplete frame waits for the next chunk.

    A `LiveDecoder` and a `PacketDecoder`.
    """

    inline = True
    holds = False

    def __init__(self, codec: PlainCodec, rate: int, channels: int = 1) -> None:
        self.rate = rate
        self.channels = channels
        self.losses = Losses()  # raw samples do not show losses
        self.warnings: list[str] = []
        self._convert, sample_bytes = _CODECS[codec]
        self.frame_bytes = sample_bytes * channels
        self._rest = b""  # beginning of an incomplete frame

    def read(self, chunk: bytes, limit_s: float = math.inf) -> PCM:  # noqa: ARG002 - of `LiveDecoder`
        """Return the complete frames so far, (S, C) int16."""
        if self._rest:
            chunk = self._rest + chunk
        whole = len(chunk) - len(chunk) % self.frame_bytes
        self._rest = chunk[whole:]
        return self._convert(chunk[:whole] if self._rest else chunk).reshape(-1, self.channels)  # (S, C)

    feed = decode = read

    def finish(self) -> None:
        """Do nothing: uncompressed samples cannot fail to decode."""

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of audio."""
        return self.rate * self.frame_bytes

    def drain(self, limit_s: float = math.inf) -> PCM:  # noqa: ARG002 - of `LiveDecoder`
        """Return no samples: only an incomplete frame is held back."""
        return np.empty((0, self.channels), np.int16)

    flush = drain


@functools.cache
def mulaw_table() -> PCM:
    """Return the 16-bit value of each mu-law code, (256,) int16. Source: ITU-T G.711, table 2."""
    code = ~np.arange(256) & 0xFF  # sent inverted
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


@functools.cache
def alaw_table() -> PCM:
    """Return the 16-bit value of each A-law code, (256,) int16. Source: ITU-T G.711, table 1."""
    code = np.arange(256) ^ 0x55  # sent with even bits inverted
    segment = (code >> 4) & 7
    step = ((code & 0x0F) << 4) + 8  # the middle of the interval
    magnitude = np.where(segment == 0, step, (step + 0x100) << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


def to_int16(samples: NDArray[np.float32] | NDArray[np.float64], scale: float) -> PCM:
    """Return samples times `scale`, rounded and clipped; NaN becomes silence."""
    with np.errstate(invalid="ignore", over="ignore"):  # a client may send anything
        scaled = samples * scale
        if not np.isfinite(scaled.sum()):  # ten times cheaper than an unconditional nan_to_num
            scaled = np.nan_to_num(scaled, nan=0.0, posinf=32_767, neginf=-32_768)
    whole: PCM = np.clip(np.rint(scaled), -32_768, 32_767).astype(np.int16)
    return whole


def _u8(data: bytes) -> PCM:
    return ((np.frombuffer(data, np.uint8).astype(np.int16) - 128) << 8).astype(np.int16)


def _s24(data: bytes) -> PCM:
    triples = np.frombuffer(data, np.uint8).reshape(-1, 3)  # (S, 3)
    words = np.zeros((len(triples), 4), np.uint8)  # (S, 4): the low byte is empty
    words[:, 1:] = triples
    return _from_integers(words.tobytes())


def _from_integers(data: bytes, kind: str = "<i4", shift: int = 15) -> PCM:
    rounded = ((np.frombuffer(data, kind) >> shift) + 1) >> 1
    samples: PCM = np.minimum(rounded, 32_767).astype(np.int16)
    return samples


_CODECS: dict[PlainCodec, tuple[Callable[[bytes], PCM], int]] = {
    PlainCodec.U8: (_u8, 1),
    PlainCodec.S16: (lambda data: np.frombuffer(data, "<i2"), 2),
    PlainCodec.S24: (_s24, 3),
    PlainCodec.S32: (_from_integers, 4),
    PlainCodec.S64: (functools.partial(_from_integers, kind="<i8", shift=47), 8),
    PlainCodec.F32: (lambda data: to_int16(np.frombuffer(data, "<f4"), FULL_SCALE), 4),
    PlainCodec.F64: (lambda data: to_int16(np.frombuffer(data, "<f8"), FULL_SCALE), 8),
    PlainCodec.MULAW: (lambda data: mulaw_table()[np.frombuffer(data, np.uint8)], 1),
    PlainCodec.ALAW: (lambda data: alaw_table()[np.frombuffer(data, np.uint8)], 1),
}


def sample_bytes(codec: PlainCodec) -> int:
    """Return the size in bytes of one sample of one channel."""
    return _CODECS[codec][1]


PLAIN_CODECS = {
    Encoding.LINEAR16: PlainCodec.S16,
    Encoding.LINEAR32: PlainCodec.F32,
    Encoding.MULAW: PlainCodec.MULAW,
    Encoding.ALAW: PlainCodec.ALAW,
}
