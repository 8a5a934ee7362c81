"""Streaming demuxer of MP3 and of AAC in ADTS, including the tags between frames.

Own code because FFmpeg's parser reports neither lost bytes nor where a second file begins.

Source: ISO/IEC 11172-3 and 13818-3 (headers and bit rates), 13818-7 (ADTS), id3.org (ID3v1, ID3v2), and Hydrogenaudio's
descriptions of the Xing and LAME tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from server.audio.packets import ByteWindow, Demuxer, Item, NonAudioBudget, PacketCodec, Resync, Track
from server.errors import Undecodable

ID3, ID3V1, APE = b"ID3", b"TAG", b"APETAGEX"
ID3_HEAD_BYTES, ID3V1_BYTES, APE_HEAD_BYTES = 10, 128, 32
HEAD_BYTES = 7  # of ADTS; MP3 has 4
FRAMES = 3  # consecutive ones are not there by chance
_SYNC = re.compile(rb"\xff[\xe2-\xff][\0-\xef]")
_BIT_RATES = {  # kbit/s, by whether it is version 1, and layer
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_AAC_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350)
_AAC_CHANNELS = (2, 1, 2, 3, 4, 5, 6, 8)  # by configuration; 0: the frame has it, usually stereo
_AAC_CHANNEL_BYTES = 1_024  # of a block at most: 768 of audio, as a decoder's buffer has, and other data
COUNTED_WRONG = 2  # frames: encoders' counts are off by one or two
_DECODER_DELAY = 528 + 1  # samples. Source: LAME's technical FAQ
_DELAYS_AT = 21  # in the LAME tag


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Frame header: the frame's size, and the form that all frames of a track share."""

    codec: PacketCodec
    rate: int
    channels: int
    size_bytes: int
    samples: int
    side_bytes: int = 0  # of MP3, after the header
    layer: int = 0  # of MP3

    @property
    def form(self) -> tuple[PacketCodec, int, int, int]:
        """Codec, rate, channels and layer, the same in all frames of a track."""
        return self.codec, self.rate, self.channels, self.layer


def frame_header(data: bytes | bytearray, at: int = 0) -> FrameHeader | None:
    """Return the frame header at `at`, None if there is none or it is incomplete."""
    if len(data) < at + HEAD_BYTES or data[at] != 0xFF:
        return None
    head = data[at : at + HEAD_BYTES]
    return _adts(head) if head[1] & 0xF6 == 0xF0 else _mp3(head)


def first_frame(data: bytes) -> int | None:
    """Return the offset of the first frame that is followed by others, None without such a frame."""
    for sync in _SYNC.finditer(data):
        at, header = sync.start(), frame_header(data, sync.start())
        for _ in range(FRAMES - 1):
            if header is None:
                break
            at, form = at + header.size_bytes, header.form
            header = frame_header(data, at)
            header = header if header is not None and header.form == form else None
        if header is not None:
            return sync.start()
    return None


def _adts(head: bytes | bytearray) -> FrameHeader | None:
    rate_index = head[2] >> 2 & 15
    size = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    form, blocks = (head[2] & 1) << 2 | head[3] >> 6, (head[6] & 3) + 1
    most = (_AAC_CHANNELS[form] if form else 8) * blocks * _AAC_CHANNEL_BYTES
    if rate_index >= len(_AAC_RATES) or not HEAD_BYTES < size <= most:
        return None
    return FrameHeader(PacketCodec.AAC, _AAC_RATES[rate_index], _AAC_CHANNELS[form], size, 1_024 * blocks)


def _mp3(head: bytes | bytearray) -> FrameHeader | None:
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    bit_rate, rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if head[1] & 0xE0 != 0xE0 or version == 1 or layer == 4 or bit_rate in (0, 15) or rate == 3 or head[3] & 3 == 2:
        return None  # bit rate 0 (free format) is not supported
    first, hz = version == 3, _MP3_RATES[version][rate]
    bits = _BIT_RATES[first, layer][bit_rate] * 1_000
    channels = 1 if head[3] >> 6 == 3 else 2
    if layer == 1:
        return FrameHeader(PacketCodec.MP3, hz, channels, (12 * bits // hz + padding) * 4, 384, layer=layer)
    samples = 576 if layer == 3 and not first else 1_152
    side = {(True, 1): 17, (True, 2): 32, (False, 1): 9, (False, 2): 17}[first, channels]
    return FrameHeader(PacketCodec.MP3, hz, channels, samples // 8 * bits // hz + padding, samples, side, layer)


def tag_size(data: bytes | memoryview, at: int) -> int:
    """Return the size of the ID3v2 tag at `at`, 0 if there is none, or only the beginning of its header."""
    head = bytes(data[at : at + ID3_HEAD_BYTES])
    is_tag = len(head) == ID3_HEAD_BYTES and head.startswith(ID3) and not any(byte > 0x7F for byte in head[6:])
    return id3_bytes(head) if is_tag else 0


def id3_bytes(head: bytes | bytearray) -> int:
    """Return the size of the ID3v2 tag with this header."""
    size = 0
    for byte in head[6:10]:
        size = size << 7 | byte & 0x7F
    return ID3_HEAD_BYTES + size + (ID3_HEAD_BYTES if head[5] & 0x10 else 0)  # with a footer


class MpegDemuxer(Demuxer):
    """Yields MP3 or ADTS frames; each further file starts a new track."""

    def __init__(self) -> None:
        self._window = ByteWindow()
        self._non_audio = NonAudioBudget()
        self._resync = Resync("an MP3 or AAC frame was")
        self._form: tuple[PacketCodec, int, int, int] | None = None  # of the track
        self._frames_left: int | None = None  # of the file, None if its first frame has no count
        self._skip = 0  # bytes of a tag that are still to be skipped

    def feed(self, chunk: bytes) -> Iterator[Item]:
        """Yield the frames that `chunk` completes. Raises: Undecodable."""
        self._window.data += chunk
        yield from self._read(at_end=False)

    def drain(self) -> Iterator[Item]:
        """Yield a first frame that is not followed by another yet; an incomplete one is dropped."""
        yield from self._read(at_end=True)

    def flush(self) -> Iterator[Item]:
        """Yield the last frames. Raises: Undecodable if no frame was found after damage."""
        yield from self._read(at_end=True)
        if self._resync.searching:
            raise self._resync.error()

    def problem(self) -> str | None:
        """Return a warning if the stream ends inside a frame or tag, or before frames that its first one announces."""
        if self._window.data or self._skip:
            return "truncated: the stream ends inside a frame or a tag"
        missing = self._frames_left or 0
        return f"truncated: {missing} announced MP3 frames are missing" if missing > COUNTED_WRONG else None

    def _read(self, *, at_end: bool) -> Iterator[Item]:
        window = self._window
        while window.data:
            if self._skip:
                dropped = min(self._skip, len(window.data))
                window.drop(dropped)
                self._skip -= dropped
                continue
            tag_bytes = _tag_bytes(window.data)
            if tag_bytes:
                self._non_audio.part(tag_bytes)
                self._skip = tag_bytes
                continue
            if tag_bytes is None or len(window.data) < HEAD_BYTES:
                return
            header = frame_header(window.data)
            is_frame = header is not None and self._is_frame(header, at_end=at_end)
            if is_frame is None or (is_frame and header is not None and len(window.data) < header.size_bytes):
                return
            if is_frame and header is not None:
                yield from self._frame(header, window.take(header.size_bytes))
            else:
                self._search()

    def _is_frame(self, header: FrameHeader, *, at_end: bool) -> bool | None:
        """Whether the buffer begins with a frame, None if more bytes are needed: the first is confirmed by the next."""
        if header.form == self._form and not self._resync.searching:
            return True
        data, end = self._window.data, header.size_bytes
        if len(data) < end + HEAD_BYTES:
            return len(data) >= end if at_end else None
        following = frame_header(data, end)
        return data.startswith((ID3, ID3V1, APE), end) or (following is not None and following.form == header.form)

    def _search(self) -> None:
        """Drop bytes up to the next possible frame. Raises: Undecodable."""
        window = self._window
        if self._form is None:
            raise Undecodable(
                "the first MP3 or AAC frame is not followed by another; for raw audio set encoding and sample_rate"
            )
        self._resync.lose(window.offset)
        position = window.data.find(b"\xff", 1)
        self._resync.skip(window, position if position > 0 else len(window.data))

    def _frame(self, header: FrameHeader, frame: bytes) -> Iterator[Item]:
        if self._resync.searching:
            self._resync.found()
            self.resyncs += 1
        tag = _xing(header, frame) if header.codec is PacketCodec.MP3 else None
        if tag is not None or header.form != self._form or self._frames_left == 0:
            self._form = header.form
            self._frames_left = None if tag is None else tag.frames
            skip, length = (0, None) if tag is None else (tag.skip, tag.length)
            yield Track(header.codec, header.rate, header.channels, skip=skip, length=length)
        if tag is not None:
            self._non_audio.part(len(frame))
            return
        if self._frames_left is not None:
            self._frames_left -= 1
        self._non_audio.audio()
        yield frame


def _tag_bytes(data: bytearray) -> int | None:
    """Return the size of the tag at the start of the buffer, 0 if there is none, None if more bytes are needed."""
    if data.startswith(ID3):
        return id3_bytes(data) if len(data) >= ID3_HEAD_BYTES else None
    if data.startswith(APE):
        if len(data) < APE_HEAD_BYTES:
            return None
        is_header = data[23] & 0x20  # else a footer
        return APE_HEAD_BYTES + (int.from_bytes(data[12:16], "little") if is_header else 0)
    if data.startswith(ID3V1):
        return ID3V1_BYTES
    begins = any(magic.startswith(bytes(data[: len(magic)])) for magic in (ID3, ID3V1, APE))
    return None if begins and len(data) < len(APE) else 0


@dataclass(frozen=True, slots=True)
class XingTag:
    """Length of an MP3 file, from its first frame, which has no audio."""

    frames: int | None
    skip: int
    length: int | None  # samples


def _xing(header: FrameHeader, frame: bytes) -> XingTag | None:
    """Return the Xing, Info or VBRI tag in a frame, None if the frame has audio."""
    at = 4 + header.side_bytes
    if frame[36:40] == b"VBRI":
        return XingTag(None, 0, None)
    if frame[at : at + 4] not in (b"Xing", b"Info"):
        return None
    flags = int.from_bytes(frame[at + 4 : at + 8], "big")
    at += 8
    frames = int.from_bytes(frame[at : at + 4], "big") if flags & 1 else None
    at += 4 * (flags & 1) + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
    if frame[at : at + 4] not in (b"LAME", b"Lavf", b"Lavc"):
        return XingTag(frames, 0, None)
    delays = int.from_bytes(frame[at + _DELAYS_AT : at + _DELAYS_AT + 3], "big")
    delay, padding = delays >> 12, delays & 0xFFF
    length = None if frames is None else max(0, frames * header.samples - delay - padding)
    return XingTag(frames, delay + _DECODER_DELAY, length)
