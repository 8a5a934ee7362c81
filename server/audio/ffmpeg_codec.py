"""Decodes packets to 16-bit samples by FFmpeg. The only file of the live path that needs the package `av`.

Only the decoders named here are ever opened, of tracks that our own demuxers describe: no FFmpeg demuxer, protocol or
filter sees a client's bytes here. A damaged packet is concealed; many of them in a row end the stream.
"""

from __future__ import annotations

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from server.audio.formats import Losses
from server.audio.packets import PacketCodec, Track
from server.audio.pcm import PCM
from server.audio.raw import FULL_SCALE, to_int16
from server.errors import NotTaken, Undecodable

MAX_DAMAGED = 50  # packets in a row: a second of Opus
MAX_GUESSED = 5  # packets in a row: libopus goes on with a noise that takes seconds to fade
_DECODERS = {
    PacketCodec.OPUS: "libopus",
    PacketCodec.FLAC: "flac",
    PacketCodec.VORBIS: "vorbis",
    PacketCodec.MP3: "mp3float",
    PacketCodec.AAC: "aac",
}
_FIXED_FORM = frozenset({PacketCodec.OPUS, PacketCodec.FLAC, PacketCodec.VORBIS})
"""The header names rate and channels. An AAC header may name half of both (SBR, PS), and MP3 has none."""
_SCALES = {  # dtype: the value of silence, and the factor to 16 bits
    "u1": (128, 256.0),
    "i4": (0, 1 / 65_536),
    "f4": (0, FULL_SCALE),
    "f8": (0, FULL_SCALE),
}
_FFMPEG_ERRORS = (av.FFmpegError, ValueError)


class Codec:
    """The decoder of one track."""

    def __init__(self, track: Track, losses: Losses) -> None:
        """Open it; concealed packets are counted in `losses`. Raises: Undecodable for a setup that makes no sense."""
        assert isinstance(track.codec, PacketCodec)
        self._track, self._losses = track, losses
        self._name = track.codec.value
        self.rate, self.channels = track.rate, track.channels
        self._good: bytes = b""  # the last packet that could be decoded
        self._samples = track.rate // 50 if track.codec is PacketCodec.OPUS else 0  # of it; 20 ms are usual
        self._damaged = 0  # packets since
        try:
            self._context = _open(track)
        except _FFMPEG_ERRORS as error:
            raise Undecodable(f"the {self._name} header is damaged") from error

    @property
    def nothing(self) -> PCM:
        """No samples, (0, C) int16."""
        return np.empty((0, self.channels), np.int16)

    def decode(self, packet: bytes) -> PCM:
        """Return its samples, (S, C) int16; a damaged packet's are made up. Raises: Undecodable, NotTaken."""
        try:
            if not packet:
                raise ValueError("FFmpeg takes an empty packet for the end")
            samples = self._decoded(packet)
        except _FFMPEG_ERRORS as error:
            self._damaged += 1
            self._losses.concealed += 1
            if self._damaged > MAX_DAMAGED:
                raise Undecodable(f"{self._damaged} packets in a row are no {self._name}") from error
            return self._concealed()
        self._good, self._samples, self._damaged = packet, len(samples) or self._samples, 0
        return samples

    def finish(self) -> None:
        """End the track. Raises: Undecodable if it had packets, and none of them could be decoded."""
        if self._damaged and not self._good:
            raise Undecodable(f"none of {self._damaged} packets is {self._name}")

    def _decoded(self, packet: bytes) -> PCM:
        blocks = [self._checked(frame) for frame in self._context.decode(av.Packet(packet))]
        return blocks[0] if len(blocks) == 1 else np.concatenate([self.nothing, *blocks])

    def _checked(self, frame: AudioFrame) -> PCM:
        form = frame.sample_rate, frame.layout.nb_channels
        if form != (self.rate, self.channels):
            if self._track.codec in _FIXED_FORM:
                raise NotTaken("the audio changes its sample rate or its channels on the way")
            self.rate, self.channels = form
        return frame_samples(frame)

    def _concealed(self) -> PCM:
        """Samples in place of a packet: libopus's own guess, or silence as long as the last packet."""
        if self._track.codec is PacketCodec.OPUS and self._good and self._damaged <= MAX_GUESSED:
            try:
                return self._decoded(opus_loss(self._good))
            except _FFMPEG_ERRORS:
                pass
        return np.zeros((self._samples, self.channels), np.int16)


def opus_loss(packet: bytes) -> bytes:
    """Return a packet as long as this one whose frames are empty, which a decoder conceals. Source: RFC 6716, 3.2.5."""
    frames = {0: 1, 1: 2, 2: 2}.get(packet[0] & 3) or packet[1] & 0x3F
    return bytes([packet[0] | 3, frames])


def frame_samples(frame: AudioFrame) -> PCM:
    """Return the samples of one decoded frame of any format, (S, C) int16."""
    array = frame.to_ndarray()  # (C, S) planar, or (1, S·C)
    samples = array.T if frame.format.is_planar else array.reshape(-1, frame.layout.nb_channels)  # (S, C)
    if samples.dtype == np.int16:
        return np.ascontiguousarray(samples, np.int16)
    offset, scale = _SCALES[samples.dtype.str[1:]]
    return to_int16(samples.astype(np.float64) - offset, scale)


def _open(track: Track) -> AudioCodecContext:
    codec = PacketCodec(track.codec)
    context = av.CodecContext.create(_DECODERS[codec], "r")
    assert isinstance(context, AudioCodecContext)
    context.thread_count = 1  # left alone it starts a thread a core for each stream
    if track.setup:
        context.extradata = track.setup
    elif codec in _FIXED_FORM:
        context.sample_rate = track.rate
        context.layout = {1: "mono", 2: "stereo"}[track.channels]
    if codec is PacketCodec.FLAC:
        context.options = {"err_detect": "crccheck+explode"}
    context.open()
    return context
