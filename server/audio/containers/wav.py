"""Demuxer of a RIFF/WAVE stream, as it arrives; the size that a live one announces is ignored where it is a filler.

Source: Microsoft's "Multiple Channel Audio Data and WAVE Files"; the format tags are those of mmreg.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from server.audio.packets import MAX_SETUP_BYTES, Demuxer, NonAudioBudget, Track
from server.audio.raw import PlainCodec
from server.errors import NotTaken, Undecodable

MAGIC = b"RIFF"
RIFF_BYTES, CHUNK_HEAD_BYTES, FORMAT_BYTES = 12, 8, 16
EXTENSIBLE, EXTENSIBLE_BYTES, SUBFORMAT_AT = 0xFFFE, 40, 24
UNKNOWN_SIZES = (0, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF - 36, 0x7FFFFFFF - 36)  # of writers that cannot seek back
CODECS = {
    (1, 8): PlainCodec.U8,
    (1, 16): PlainCodec.S16,
    (1, 24): PlainCodec.S24,
    (1, 32): PlainCodec.S32,
    (3, 32): PlainCodec.F32,
    (3, 64): PlainCodec.F64,
    (6, 8): PlainCodec.ALAW,
    (7, 8): PlainCodec.MULAW,
}


class WavDemuxer(Demuxer):
    """Reads the chunks before the samples; chunks behind them are ignored."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._non_audio = NonAudioBudget()
        self._begun = False
        self._skip = 0  # bytes of a chunk that is not wanted
        self._track: Track | None = None
        self._left: int | None = 0  # bytes of samples to come, None where the size is not known
        self._in_samples = False

    def feed(self, chunk: bytes) -> Iterator[Track | bytes]:
        """Yield the track, then its samples as they come. Raises: Undecodable, NotTaken."""
        if not self._in_samples:
            self._buffer += chunk
            yield from self._headers()
            chunk = bytes(self._buffer) if self._in_samples else b""
        if self._in_samples and chunk:
            yield chunk if self._left is None else chunk[: self._left]
            if self._left is not None:
                self._left = max(0, self._left - len(chunk))

    def _headers(self) -> Iterator[Track]:
        buffer = self._buffer
        if not self._begun:
            if len(buffer) < RIFF_BYTES:
                return
            if not buffer.startswith(MAGIC) or buffer[8:12] != b"WAVE":
                raise Undecodable("this is no WAV stream")
            self._begun = True
            del buffer[:RIFF_BYTES]
        while buffer and not self._in_samples:
            dropped = min(self._skip, len(buffer))
            del buffer[:dropped]
            self._skip -= dropped
            if self._skip or len(buffer) < CHUNK_HEAD_BYTES:
                return
            name, size = bytes(buffer[:4]), int.from_bytes(buffer[4:8], "little")
            if name == b"data":
                yield self._samples(size)
            elif name == b"fmt ":
                if size > MAX_SETUP_BYTES:
                    raise Undecodable("the WAV header is damaged")
                if len(buffer) < CHUNK_HEAD_BYTES + size:
                    return
                self._track = wav_track(bytes(buffer[CHUNK_HEAD_BYTES : CHUNK_HEAD_BYTES + size]))
                self._skip_chunk(size)
            else:
                self._skip_chunk(size)

    def _skip_chunk(self, size: int) -> None:
        self._non_audio.part(CHUNK_HEAD_BYTES + size)
        self._skip = CHUNK_HEAD_BYTES + size + size % 2  # chunks begin at even places

    def _samples(self, size: int) -> Track:
        if self._track is None:
            raise Undecodable("the WAV stream does not say what its samples are")
        del self._buffer[:CHUNK_HEAD_BYTES]
        self._in_samples = True
        self._left = None if size in UNKNOWN_SIZES else size
        return self._track


def wav_track(body: bytes) -> Track:
    """Return the track that a format chunk describes. Raises: NotTaken, Undecodable."""
    if len(body) < FORMAT_BYTES:
        raise Undecodable("the WAV header is damaged")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if tag == EXTENSIBLE:
        if len(body) < EXTENSIBLE_BYTES:
            raise Undecodable("the WAV header is damaged")
        (tag,) = struct.unpack_from("<H", body, SUBFORMAT_AT)
    codec = CODECS.get((tag, bits))
    if codec is None:
        raise NotTaken(f"WAV of format {tag} with {bits} bits is not taken in live streams")
    return Track(codec, rate, channels)
