"""Streaming demuxer of WAV: RIFF, RF64 and BW64, one file or several concatenated ones. Pure.

A data size of 0, or of about 2 GB or more, is a placeholder of a writer that cannot seek back to the header: such
samples end at the next WAV header or at the end of the stream.

Source: Microsoft's "Multiple Channel Audio Data and WAVE Files"; EBU Tech 3306 and ITU-R BS.2088 for `ds64`; mmreg.h
for the format tags.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from enum import Enum, auto

from server.audio.packets import MAX_SETUP_BYTES, Demuxer, NonAudioBudget, Track
from server.audio.raw import PlainCodec
from server.errors import NotTaken, Undecodable

MAGIC = b"RIFF", b"RF64", b"BW64"
FILE = re.compile(rb"(?:RIFF|RF64|BW64)[\s\S]{4}WAVE")
RIFF_BYTES, CHUNK_HEAD_BYTES, NAME_BYTES, FORMAT_BYTES = 12, 8, 4, 16
EXTENSIBLE, EXTENSIBLE_BYTES, SUBFORMAT_AT = 0xFFFE, 40, 24
DS64_BYTES, DS64_DATA_AT, SIZE_IN_DS64 = 28, 8, 0xFFFFFFFF
LEAST_FILLER = 2_000_000_000
"""What pocket-tts writes (kyutai-labs/pocket-tts#229); sox 0x7FFFF000 and, in AIFF, 0x7F000000, arecord about 2**31,
FFmpeg 2**32 - 1."""
MAX_JUNK_BYTES = 2**16  # after the samples, outside chunks: tags and padding of other programs
MAX_TAIL_CHUNK_BYTES = 2**24
TAIL_CHUNKS = frozenset((b"LIST", b"bext", b"fact", b"cue ", b"smpl", b"id3 ", b"ID3 ", b"iXML", b"PEAK", b"JUNK"))
CHUNKS = TAIL_CHUNKS | {b"fmt ", b"data"}
CODECS = {
    (1, 8): PlainCodec.U8,
    (1, 16): PlainCodec.S16,
    (1, 24): PlainCodec.S24,
    (1, 32): PlainCodec.S32,
    (1, 64): PlainCodec.S64,
    (3, 32): PlainCodec.F32,
    (3, 64): PlainCodec.F64,
    (6, 8): PlainCodec.ALAW,
    (7, 8): PlainCodec.MULAW,
}


class _State(Enum):
    BEGIN = auto()  # a file's first twelve bytes
    HEAD = auto()  # chunks before the samples
    SAMPLES = auto()
    TAIL = auto()  # chunks after the samples, or another file


class WavDemuxer(Demuxer):
    """Yields each file's track, then its samples as they arrive. Other chunks are skipped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._non_audio = NonAudioBudget()
        self._state = _State.BEGIN
        self._skip = 0  # bytes of an unused chunk that are still to be skipped
        self._padded = False  # whether the next byte may be `padding`
        self._track: Track | None = None
        self._left: int | None = None  # remaining bytes of samples, None if unknown
        self._announced = 0  # bytes of samples by the header
        self._ds64: int | None = None  # the same by the ds64 chunk of RF64
        self._junk_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[Track | bytes]:
        """Yield the tracks and samples that `chunk` completes. Raises: Undecodable, NotTaken."""
        buffer = self._buffer
        buffer += chunk
        while buffer:
            before = len(buffer), self._state, self._skip, self._padded
            if self._skip:
                dropped = min(self._skip, len(buffer))
                del buffer[:dropped]
                self._skip -= dropped
            elif self._padded:
                if buffer[0] and len(buffer) <= NAME_BYTES:
                    return
                self._padded = False
                del buffer[: padding(buffer)]
            elif self._state is _State.SAMPLES:
                if samples := self._samples():
                    yield samples
            elif (track := self._header()) is not None:
                yield track
            if (len(buffer), self._state, self._skip, self._padded) == before:
                return

    def flush(self) -> Iterator[bytes]:
        """Yield the last bytes, held back because they could have been the start of another file."""
        if self._state is _State.SAMPLES and self._buffer:
            yield bytes(self._buffer)
            self._buffer.clear()

    def problem(self) -> str | None:
        """Return a warning about missing or skipped bytes at the end, None for a complete file."""
        if self._track is None or (self._state is _State.BEGIN and self._buffer):
            return "truncated: the WAV ends before its samples"
        if self._state is _State.SAMPLES and self._left:
            there = self._announced - self._left
            return f"truncated: the WAV header announces {self._announced} bytes of samples, but there are {there}"
        if self._skip:
            return "truncated: the WAV ends inside a chunk"
        junk_bytes = self._junk_bytes + (len(self._buffer) if self._state is _State.TAIL else 0)
        return f"skipped: {junk_bytes} bytes after the samples of the WAV are not audio" if junk_bytes else None

    def _header(self) -> Track | None:
        """Read the next header or chunk outside the samples; return the track when its samples begin."""
        buffer = self._buffer
        if self._state is _State.BEGIN:
            self._begin()
            return None
        if self._state is _State.TAIL:
            return self._tail()
        if len(buffer) < CHUNK_HEAD_BYTES:
            return None
        name, size = bytes(buffer[:NAME_BYTES]), int.from_bytes(buffer[NAME_BYTES:CHUNK_HEAD_BYTES], "little")
        if name == b"data":
            return self._open_samples(size)
        if name in (b"fmt ", b"ds64"):
            if size > MAX_SETUP_BYTES:
                raise Undecodable("the WAV header is damaged")
            if len(buffer) < CHUNK_HEAD_BYTES + size:
                return None
            body = bytes(buffer[CHUNK_HEAD_BYTES : CHUNK_HEAD_BYTES + size])
            if name == b"fmt ":
                self._track = wav_track(body)
            elif size >= DS64_BYTES:
                self._ds64 = int.from_bytes(body[DS64_DATA_AT : DS64_DATA_AT + 8], "little")
        self._skip_chunk(size)
        return None

    def _begin(self) -> None:
        buffer = self._buffer
        if len(buffer) >= RIFF_BYTES:
            if buffer.startswith(b"RIFX"):
                raise NotTaken("big-endian WAV (RIFX) is not supported live; send RIFF")
            if not _begins_file(buffer, 0):
                raise Undecodable("not a WAV file, but another kind of RIFF, such as AVI; send WAV")
            del buffer[:RIFF_BYTES]
            self._state, self._track, self._ds64, self._junk_bytes = _State.HEAD, None, None, 0

    def _tail(self) -> Track | None:
        """Read what follows the samples: chunks, another file, or junk of other programs."""
        buffer = self._buffer
        if len(buffer) < CHUNK_HEAD_BYTES:
            return None
        name, size = bytes(buffer[:NAME_BYTES]), int.from_bytes(buffer[NAME_BYTES:CHUNK_HEAD_BYTES], "little")
        if name in MAGIC and len(buffer) < RIFF_BYTES:
            return None
        if _begins_file(buffer, 0):
            self._state = _State.BEGIN
        elif name == b"data" and not self._junk_bytes:
            return self._open_samples(size)
        elif name in TAIL_CHUNKS or (not self._junk_bytes and _is_chunk(name, size)):
            self._skip_chunk(size)
        else:
            del buffer[:1]
            self._junk_bytes += 1
            if self._junk_bytes > MAX_JUNK_BYTES:
                raise Undecodable(
                    f"the WAV header announces {self._announced} bytes of samples; more than {MAX_JUNK_BYTES} "
                    "unrecognized bytes follow"
                )
        return None

    def _skip_chunk(self, size: int) -> None:
        self._non_audio.part(CHUNK_HEAD_BYTES + size)
        self._skip, self._padded = CHUNK_HEAD_BYTES + size, bool(size % 2)

    def _open_samples(self, size: int) -> Track | None:
        """Begin the samples and return their track; None if more bytes are needed to see whether there are any."""
        buffer = self._buffer
        if self._track is None:
            raise Undecodable("the WAV stream has no fmt chunk before its samples")
        after = bytes(buffer[CHUNK_HEAD_BYTES : CHUNK_HEAD_BYTES + NAME_BYTES])
        if size == 0 and len(after) < NAME_BYTES:
            return None
        if size == SIZE_IN_DS64 and self._ds64 is not None:
            size = self._ds64
        del buffer[:CHUNK_HEAD_BYTES]
        unknown = size == 0 or LEAST_FILLER <= size <= SIZE_IN_DS64 or size >= 1 << 62
        self._announced, self._left = size, None if unknown else size
        self._state = _State.TAIL if size == 0 and after in TAIL_CHUNKS else _State.SAMPLES
        return self._track

    def _samples(self) -> bytes:
        """Take the samples in the buffer; empty if it holds only bytes that may start another file."""
        end = self._next_file() if self._left is None else min(self._left, len(self._buffer))
        samples = bytes(self._buffer[:end])
        del self._buffer[:end]
        if self._left is not None:
            self._left -= end
            if not self._left:
                self._state, self._padded = _State.TAIL, bool(self._announced % 2)
        if samples:
            self._non_audio.audio()
        return samples

    def _next_file(self) -> int:
        """Return the length of the samples in the buffer, up to the next file or to bytes that may start one."""
        buffer = self._buffer
        if (header := FILE.search(buffer)) is not None:
            self._state = _State.SAMPLES if header.start() else _State.BEGIN
            return header.start()
        tails = range(max(0, len(buffer) - RIFF_BYTES + 1), len(buffer))
        return next((at for at in tails if _may_begin_file(buffer[at:])), len(buffer))


def padding(following: bytes | bytearray) -> int:
    """Return the bytes of padding after a chunk of odd size, 0 or 1.

    A zero, by the format; some writers leave it out (awslabs/ferret-scan#346), or write something else
    (MediaArea/BWFMetaEdit#155). `following` are at least five bytes, if there are as many.
    """
    second = bytes(following[1 : 1 + NAME_BYTES])
    return int(not following[:1].strip(b"\0") or second in CHUNKS or not _is_name(bytes(following[:NAME_BYTES])))


def _begins_file(data: bytes | bytearray, at: int) -> bool:
    return data[at : at + NAME_BYTES] in MAGIC and data[at + 8 : at + RIFF_BYTES] == b"WAVE"


def _may_begin_file(data: bytearray) -> bool:
    """Whether these bytes, too few for the header of a file, may be the beginning of one."""
    return bytes(data[:NAME_BYTES]) in {magic[: len(data)] for magic in MAGIC} and b"WAVE".startswith(data[8:])


def _is_chunk(name: bytes, size: int) -> bool:
    """Whether these bytes can be the header of an unlisted chunk."""
    return size <= MAX_TAIL_CHUNK_BYTES and _is_name(name)


def _is_name(name: bytes) -> bool:
    return name.strip(b" _").isalnum()


def wav_track(body: bytes) -> Track:
    """Return the track described by a fmt chunk. Raises: NotTaken, Undecodable."""
    if len(body) < FORMAT_BYTES:
        raise Undecodable("the WAV header is damaged")
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if tag == EXTENSIBLE:
        if len(body) < EXTENSIBLE_BYTES:
            raise Undecodable("the WAV header is damaged")
        (tag,) = struct.unpack_from("<H", body, SUBFORMAT_AT)
    stored = 8 * (frame_bytes // channels) if channels and bits % 8 else bits  # 12 or 20 bits use whole bytes
    if bits == 24 and frame_bytes == 4 * channels:
        stored = 32
    codec = CODECS.get((tag, stored))
    if codec is None:
        raise NotTaken(f"WAV format {tag} with {bits} bits is not supported live; send PCM, float, mu-law or A-law")
    return Track(codec, rate, channels)
