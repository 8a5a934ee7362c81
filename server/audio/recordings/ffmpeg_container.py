"""Decoder of uploaded containers with FFmpeg. Blocking. Needs the package `av`.

FFmpeg is passed the container format, so that it never detects one that refers to other files (playlists, `concat`),
and all protocols are disabled. Only the listed audio decoders are opened: pictures and video are never decoded.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import av
import numpy as np
from av.audio.frame import AudioFrame

from server.audio.ffmpeg_codec import frame_samples
from server.audio.pcm import BLOCK_S, PCM
from server.audio.recordings.riff import without_metadata
from server.errors import BadAudio, NotTaken

CODECS = (
    "opus", "libopus", "vorbis", "flac", "mp3", "mp3float", "aac", "alac", "amrnb", "amrwb", "pcm_s8", "pcm_u8",
    "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be", "pcm_f32le", "pcm_f32be",
    "pcm_f64le", "pcm_f64be", "pcm_mulaw", "pcm_alaw",
    "adpcm_ima_wav", "adpcm_ima_qt", "adpcm_ms", "g722", "g726", "g726le", "gsm", "gsm_ms",  # telephone recordings
)  # fmt: skip
G721_TAG = "@\0\0\0"  # FFmpeg decodes it as G.726, whose bits have another order, to noise
PROBE_BYTES = 2**20  # read to find the streams
MAX_EMPTY_PACKETS = 10_000  # in a row that decode to no samples


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
        codec = self._stream.codec_context.name
        if codec not in CODECS:  # FFmpeg itself applies the list only while it looks for streams
            raise BadAudio(f"the codec {codec} is not supported in {kind} recordings")
        if codec == "g726" and self._stream.codec_context.codec_tag == G721_TAG:
            raise BadAudio("the codec G.721 is not supported in wav recordings; send G.726, PCM or mu-law")
        self._stream.codec_context.thread_count = 1
        self.rate: int = self._stream.codec_context.sample_rate
        self.channels: int = self._stream.codec_context.channels
        self.stated_s = self._stated_s()
        self.part, self.warnings = 0, list[str]()
        self._frames = self._decode()

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
                blocks.append(frame_samples(frame))
            except NotTaken as error:
                raise BadAudio(str(error)) from error
            except (av.FFmpegError, ValueError) as error:
                raise BadAudio("the recording is damaged") from error
            wanted -= frame.samples
            if wanted <= 0:
                break
        return np.concatenate(blocks)  # (S, C)

    def _stated_s(self) -> float | None:
        """Return the longer of the lengths in the headers of the stream and the container."""
        stream, whole = self._stream.duration, self._container.duration
        of_stream = 0.0 if stream is None else float(stream * (self._stream.time_base or 0))
        return max(of_stream, (whole or 0) / av.time_base) or None

    def _decode(self) -> Iterator[AudioFrame]:
        empty, has_audio = 0, False
        failed: Exception | None = None
        try:
            for packet in self._container.demux(self._stream):
                if failed is not None and packet.size:
                    raise BadAudio("the recording is damaged") from failed
                try:
                    frames = packet.decode()
                except av.FFmpegError as error:
                    failed, frames = error, []  # accepted for the last packet of a truncated file
                empty, has_audio = (0, True) if frames else (empty + 1, has_audio)
                if empty > MAX_EMPTY_PACKETS:
                    raise BadAudio("the recording has no audio")
                yield from (frame for frame in frames if isinstance(frame, AudioFrame))
        except (av.FFmpegError, ValueError) as error:
            raise BadAudio("the recording is damaged") from error
        if failed is not None:
            if not has_audio:
                raise BadAudio("the recording is damaged") from failed
            if not self.warnings:
                self.warnings.append("truncated: the recording ends inside its audio")


def _open_nothing(url: str, flags: int, options: dict[str, str]) -> None:
    """Reject every file or URL that a container refers to. Raises: BadAudio."""
    del url, flags, options
    raise BadAudio("the recording refers to other files, which is not supported")
