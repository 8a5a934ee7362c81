"""Decoder of uploaded containers with FFmpeg. Blocking. Needs the package `av`.

FFmpeg is passed the container format, so that it never detects one that refers to other files (playlists, `concat`),
and all protocols are disabled. Only the listed audio decoders are opened: pictures and video are never decoded.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Literal

import av
import numpy as np
from av.audio.frame import AudioFrame

from server.audio.containers.wav import EXTENSIBLE, EXTENSIBLE_BYTES, FORMAT_BYTES, SUBFORMAT_AT, padding
from server.audio.ffmpeg_codec import FrameReader
from server.audio.formats import Losses
from server.audio.pcm import BLOCK_S, PCM
from server.audio.recordings.parts import W64_HEAD_BYTES
from server.errors import BadAudio, NotTaken

CODECS = (
    "opus", "libopus", "vorbis", "flac", "mp1", "mp1float", "mp2", "mp2float", "mp3", "mp3float", "aac", "alac",
    "amrnb", "amrwb", "pcm_s8", "pcm_u8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be",
    "pcm_f32le", "pcm_f32be", "pcm_f64le", "pcm_f64be", "pcm_mulaw", "pcm_alaw",
    "adpcm_ima_wav", "adpcm_ima_qt", "adpcm_ms", "g722", "g726", "g726le", "gsm", "gsm_ms",  # telephone recordings
)  # fmt: skip
G721_TAG = "@\0\0\0"  # FFmpeg decodes it as G.726, whose bits have another order, to noise
PROBE_BYTES = 2**20  # read to find the streams
ORDERS = {b"RIFF": "little", b"RF64": "little", b"BW64": "little", b"RIFX": "big"}
NEEDED = frozenset((b"fmt ", b"fact", b"ds64"))  # chunks of a WAV without its samples
FORM_BYTES, HEAD_BYTES, NAME_BYTES, TAG_HEAD_BYTES, BEGIN_BYTES = 12, 8, 4, 10, 32
MAX_HEADER_BYTES = 2**13  # libsndfile pads that of CAF to 4,096 bytes
PLAIN_TAGS = (1, 3, 6, 7)  # integers, floats, A-law, mu-law
MAX_NEEDED_BYTES = 2**16
MAX_CHUNKS, OPEN = 4_096, 2**62  # of AIFF and W64; sizes from which they are placeholders
MAX_EMPTY_PACKETS = 10_000  # in a row that decode to no samples
PAUSES = {"amrnb": (8, 160), "amrwb": (9, 320)}  # type of the first AMR frames without speech (DTX), and their samples
ENCRYPTED = tuple(name + bytes(7) + b"\1" for name in (b"enca", b"drms"))  # sample entries of MP4


class AvSource:
    """The first audio stream of a container."""

    def __init__(self, body: bytes, kind: str) -> None:
        """Open the body as a container of this kind. Raises: BadAudio."""
        options = {"codec_whitelist": ",".join(CODECS), "protocol_whitelist": "none", "probesize": str(PROBE_BYTES)}
        try:
            self._container = av.open(
                io.BytesIO(without_metadata(body)),
                "r",
                format=kind,
                options=options,
                metadata_errors="ignore",
                io_open=_open_nothing,
            )
        except (av.FFmpegError, ValueError) as error:
            raise BadAudio(f"the {kind} recording cannot be decoded: it is damaged or not supported") from error
        if not self._container.streams.audio:
            raise BadAudio("the recording has no audio")
        self._stream = self._container.streams.audio[0]
        if self._stream.codec_context is None:  # a codec that is not listed, or a damaged header
            raise BadAudio("the recording's codec is not supported, or its header is damaged")
        codec = self._codec = self._stream.codec_context.name
        if kind == "mov" and any(entry in body for entry in ENCRYPTED):
            raise BadAudio("the recording is encrypted; send it without encryption")
        if codec not in CODECS:  # FFmpeg itself applies the list only while it looks for streams
            raise BadAudio(f"the codec {codec} is not supported in {kind} recordings")
        if codec == "g726" and self._stream.codec_context.codec_tag == G721_TAG:
            raise BadAudio("the codec G.721 is not supported in wav recordings; send G.726, PCM or mu-law")
        self._stream.codec_context.thread_count = 1
        self.rate: int = self._stream.codec_context.sample_rate
        self.channels: int = self._stream.codec_context.channels
        self.stated_s = self._stated_s(len(body))
        self.part = 0
        self.warnings = Losses(other_tracks=len(self._container.streams.audio) - 1).warnings()
        self._frames, self._reader = self._decode(), FrameReader()

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end. Raises: BadAudio."""
        blocks = [np.empty((0, self.channels), np.int16)]
        wanted = BLOCK_S * self.rate
        for frame in self._frames:
            if (frame.sample_rate, frame.layout.nb_channels) != (self.rate, self.channels):
                raise BadAudio(
                    f"the recording changes from {self.channels} channels at {self.rate} Hz "
                    f"to {frame.layout.nb_channels} at {frame.sample_rate} Hz"
                )
            try:
                blocks.append(self._reader.samples(frame))
            except NotTaken as error:
                raise BadAudio(str(error)) from error
            except (av.FFmpegError, ValueError) as error:
                raise BadAudio("the recording is damaged") from error
            wanted -= frame.samples
            if wanted <= 0:
                break
        return np.concatenate(blocks)  # (S, C)

    def _stated_s(self, body_bytes: int) -> float | None:
        """Return the longer of the lengths in the headers of the stream and the container.

        None, too, if the body has less than half of it by its bit rate: the writer could not go back to the header.
        """
        stream, whole = self._stream.duration, self._container.duration
        of_stream = 0.0 if stream is None else float(stream * (self._stream.time_base or 0))
        stated_s = max(of_stream, (whole or 0) / av.time_base)
        there = stated_s * (self._stream.codec_context.bit_rate or 0) <= 2 * 8 * body_bytes
        return stated_s if stated_s and there else None

    def _decode(self) -> Iterator[AudioFrame]:
        empty, has_audio = 0, False
        failed: Exception | None = None
        try:
            for packet in self._container.demux(self._stream):
                if failed is not None and packet.size:
                    raise BadAudio("the recording is damaged") from failed
                try:
                    frames = self._pause(bytes(packet)) or packet.decode()
                except av.FFmpegError as error:  # accepted for the last packet of a truncated file
                    failed, frames = error if packet.size > 1 else None, []  # sox counts the padding after GSM as audio
                empty, has_audio = (0, True) if frames else (empty + 1, has_audio)
                if empty > MAX_EMPTY_PACKETS:
                    raise BadAudio("the recording has no audio")
                yield from (frame for frame in frames if isinstance(frame, AudioFrame))
        except (av.FFmpegError, ValueError) as error:
            raise BadAudio("the recording is damaged") from error
        if failed is not None:
            if not has_audio:
                raise BadAudio("the recording is damaged") from failed
            if not any(warning.startswith("truncated") for warning in self.warnings):
                self.warnings.append("truncated: the recording ends inside its audio")

    def _pause(self, packet: bytes) -> list[AudioFrame]:
        """Return silence for an AMR frame without speech, which FFmpeg does not decode.

        Source: 3GPP TS 26.101 and 26.201.
        """
        first, samples = PAUSES.get(self._codec, (0, 0))
        if not (samples and packet and packet[0] >> 3 & 15 >= first):
            return []
        silence = AudioFrame.from_ndarray(np.zeros((1, samples), np.int16), format="s16", layout="mono")
        silence.sample_rate = self.rate
        return [silence]


def _open_nothing(url: str, flags: int, options: dict[str, str]) -> None:
    """Reject every file or URL that a container refers to. Raises: BadAudio."""
    del url, flags, options
    raise BadAudio("the recording refers to other files, which is not supported")


def without_metadata(body: bytes) -> bytes:
    """Return a WAV, also one after ID3 tags, with format and samples alone, little-endian; others by `_with_sizes`.

    FFmpeg allocates the size that a LIST chunk announces: 132 bytes took 832 MiB (measured). It reads big-endian
    samples (RIFX, which sox -B writes) in the wrong order.
    """
    begin = _after_tags(body)
    magic = body[begin : begin + NAME_BYTES]
    order = ORDERS.get(magic)
    if order is None or body[begin + HEAD_BYTES : begin + FORM_BYTES] != b"WAVE":
        return _with_sizes(body)
    parts, at, form = [body[begin : begin + FORM_BYTES]], begin + FORM_BYTES, b""
    while at + HEAD_BYTES <= len(body):
        name = body[at : at + NAME_BYTES]
        size = int.from_bytes(body[at + NAME_BYTES : at + HEAD_BYTES], "big" if order == "big" else "little")
        end = at + HEAD_BYTES + size
        if name == b"data":
            samples = body[at:end] if size and end < len(body) else body[at:]  # 0 and 2**32 - 1: to the end
            if order == "big" and (converted := _little_endian(form, samples[HEAD_BYTES:])) is not None:
                return converted
            parts.append(samples)
            break
        if name == b"fmt ":
            form = body[at + HEAD_BYTES : end]
        if name in NEEDED and size <= MAX_NEEDED_BYTES:
            parts.append(body[at : end + size % 2])
        at = end + (padding(body[end : end + 1 + NAME_BYTES]) if size % 2 else 0)
    return b"".join(parts)


def _little_endian(form: bytes, samples: bytes) -> bytes | None:
    """Return a big-endian WAV of plain samples as a little-endian one, None for other formats."""
    if len(form) < FORMAT_BYTES:
        return None
    tag, *fields = struct.unpack_from(">HHIIHH", form)
    if tag == EXTENSIBLE and len(form) >= EXTENSIBLE_BYTES:
        tag = max(struct.unpack_from(">HH", form, SUBFORMAT_AT))  # sox writes it as the first half, others as a whole
    width = fields[-1] // 8  # bytes of a sample
    if tag not in PLAIN_TAGS or fields[-1] not in (8, 16, 24, 32, 64):
        return None
    turned = np.frombuffer(samples[: len(samples) // width * width], np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", FORMAT_BYTES, tag, *fields) + b"data" + struct.pack("<I", len(turned))
    return b"RIFF" + struct.pack("<I", len(head) + len(turned)) + head + turned


def _with_one_header(body: bytes) -> bytes:
    """Return CAF and W64 without libsndfile's further headers in a pipe: before the samples, and after them."""
    at = body.find(body[:BEGIN_BYTES], BEGIN_BYTES, MAX_HEADER_BYTES) if body.startswith((b"caff", b"riff")) else 0
    if at <= 0 or b"data" not in body[at - W64_HEAD_BYTES : at]:
        return body
    return body[at : -at if body.startswith(body[:BEGIN_BYTES], len(body) - at) else None]


def _with_sizes(body: bytes) -> bytes:
    """Return AIFF and W64 with the sizes that their writer left open, as FFmpeg does in a pipe; others unchanged."""
    body = _with_one_header(body)
    if body.startswith(b"FORM"):
        order: Literal["big", "little"] = "big"
        name, name_bytes, width, counted, least, at = b"SSND", NAME_BYTES, 4, 0, 8, FORM_BYTES
    elif body.startswith(b"riff"):
        order = "little"
        name, name_bytes, width, counted, least, at = b"data", 16, 8, 24, 24, 40
    else:
        return body
    head_bytes = name_bytes + width
    begins = [0] if at <= len(body) else []  # of chunks whose size may be open
    for _ in range(MAX_CHUNKS):
        if at + head_bytes > len(body):
            break
        if body.startswith(name, at):
            begins.append(at)
            break
        size = int.from_bytes(body[at + name_bytes : at + head_bytes], order)
        at += max(size + head_bytes - counted, head_bytes)
        at += at % 2 if order == "big" else -at % 8
    sized: bytearray | None = None  # a copy, once a size is open
    for begin in begins:
        field = slice(begin + name_bytes, begin + head_bytes)
        size = int.from_bytes(body[field], order)
        if size < least or size >= OPEN or (size == least and sized is not None):
            sized = bytearray(body) if sized is None else sized
            size = min(len(body) - begin - head_bytes + counted, 256**width - 1)
            sized[field] = size.to_bytes(width, order)
    return body if sized is None else bytes(sized)


def _after_tags(body: bytes) -> int:
    """Return where the first bytes after all ID3 tags are; their sizes are read leniently."""
    at = 0
    while body[at : at + 3] == b"ID3" and len(body) >= at + TAG_HEAD_BYTES:
        a, b, c, d = (byte & 0x7F for byte in body[at + 6 : at + TAG_HEAD_BYTES])
        at += TAG_HEAD_BYTES + (a << 21 | b << 14 | c << 7 | d)
    return at
