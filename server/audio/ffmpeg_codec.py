"""Decodes packets to 16-bit samples by FFmpeg. The only file of the live path that needs the package `av`.

Only two decoders are ever opened, of tracks that our own demuxers describe: no FFmpeg demuxer, protocol or filter sees
a client's bytes here.
"""

from __future__ import annotations

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from server.audio.packets import PacketCodec, Track
from server.audio.pcm import PCM
from server.audio.raw import FULL_SCALE, to_int16
from server.errors import NotTaken, Undecodable

_DECODERS = {PacketCodec.OPUS: "libopus", PacketCodec.FLAC: "flac"}
_SCALES = {  # dtype: the value of silence, and the factor to 16 bits
    "u1": (128, 256.0),
    "i4": (0, 1 / 65_536),
    "f4": (0, FULL_SCALE),
    "f8": (0, FULL_SCALE),
}


class Codec:
    """The decoder of one track."""

    def __init__(self, track: Track) -> None:
        """Open it. Raises: Undecodable for a setup that makes no sense."""
        assert isinstance(track.codec, PacketCodec)
        self._track = track
        self.nothing: PCM = np.empty((0, track.channels), np.int16)
        try:
            self._context = _open(track)
        except (av.FFmpegError, ValueError) as error:
            raise Undecodable(f"the {track.codec.value} header is damaged") from error

    def decode(self, packet: bytes) -> PCM:
        """Return its samples, (S, C) int16. Raises: Undecodable, NotTaken."""
        try:
            frames = self._context.decode(av.Packet(packet))
        except (av.FFmpegError, ValueError) as error:
            raise Undecodable(f"a packet is no {self._track.codec.value}") from error
        blocks = [self._samples(frame) for frame in frames]
        return blocks[0] if len(blocks) == 1 else np.concatenate([self.nothing, *blocks])

    def _samples(self, frame: AudioFrame) -> PCM:
        if frame.sample_rate != self._track.rate or frame.layout.nb_channels != self._track.channels:
            raise NotTaken("the audio changes its sample rate or its channels on the way")
        return frame_samples(frame)


def frame_samples(frame: AudioFrame) -> PCM:
    """Return the samples of one decoded frame of any format, (S, C) int16."""
    array = frame.to_ndarray()  # (C, S) planar, or (1, S·C)
    samples = array.T if frame.format.is_planar else array.reshape(-1, frame.layout.nb_channels)  # (S, C)
    if samples.dtype == np.int16:
        return np.ascontiguousarray(samples, np.int16)
    offset, scale = _SCALES[samples.dtype.str[1:]]
    return to_int16(samples.astype(np.float64) - offset, scale)


def _open(track: Track) -> AudioCodecContext:
    context = av.CodecContext.create(_DECODERS[PacketCodec(track.codec)], "r")
    assert isinstance(context, AudioCodecContext)
    context.thread_count = 1  # left alone it starts a thread a core for each stream
    if track.setup:
        context.extradata = track.setup
    else:
        context.sample_rate = track.rate
        context.layout = {1: "mono", 2: "stereo"}[track.channels]
    if track.codec is PacketCodec.FLAC:
        context.options = {"err_detect": "crccheck+explode"}
    context.open()
    return context
