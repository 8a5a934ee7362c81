"""Decoder of packets to 16-bit samples with FFmpeg. The only module of the live path that needs the package `av`.

Only the decoders listed here are opened, for tracks described by our own demuxers: no FFmpeg demuxer, protocol or
filter reads a client's bytes here. A damaged packet is concealed; more than MAX_DAMAGED in a row end the stream.
"""

from __future__ import annotations

import av
import av.subtitles.stream  # which `av` would import at the first stream, and stall all others
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from server.audio.formats import Losses
from server.audio.packets import PacketCodec, Track
from server.audio.pcm import MAX_CHANNELS, PCM
from server.audio.raw import FULL_SCALE, to_int16
from server.errors import NotTaken, Undecodable

MAX_DAMAGED = 50  # packets in a row: a second of Opus
MAX_GUESSED = 5  # concealed packets in a row: libopus continues with noise that takes seconds to fade
_DECODERS = {
    PacketCodec.OPUS: "libopus",
    PacketCodec.FLAC: "flac",
    PacketCodec.VORBIS: "vorbis",
    PacketCodec.MP3: "mp3float",
    PacketCodec.AAC: "aac",
}
_FIXED_FORM = frozenset({PacketCodec.OPUS, PacketCodec.FLAC, PacketCodec.VORBIS})
"""The header has rate and channels. An AAC header may have half of both (SBR, PS), and MP3 has no header."""
_SCALES = {  # dtype: the value of silence, and the factor to 16 bits
    "u1": (128, 256.0),
    "i4": (0, 1 / 65_536),
    "f4": (0, FULL_SCALE),
    "f8": (0, FULL_SCALE),
}
_FORMATS = frozenset({"u8", "s16", "s32", "flt", "dbl"})  # that PyAV converts, by their packed names
POINTERS = 8
"""Of a frame's planes, in FFmpeg (AV_NUM_DATA_POINTERS). PyAV counts planes up to a null pointer, so it reads past the
array for a planar frame of this many channels, and the process ends by a segmentation fault."""
_FFMPEG_ERRORS = (av.FFmpegError, ValueError)


class Codec:
    """Decoder of one track."""

    def __init__(self, track: Track, losses: Losses) -> None:
        """Open the decoder; concealed packets are counted in `losses`. Raises: Undecodable for an invalid header."""
        assert isinstance(track.codec, PacketCodec)
        self._track, self._losses, self._reader = track, losses, FrameReader()
        self._name = track.codec.value
        self.rate, self.channels = track.rate, track.channels
        self._good: bytes = b""  # the last packet that was decoded
        self._samples = track.rate // 50 if track.codec is PacketCodec.OPUS else 0  # of that packet; at first 20 ms
        self._damaged = 0  # packets since then
        try:
            self._context = _open(track)
        except _FFMPEG_ERRORS as error:
            raise Undecodable(f"the {self._name} header is damaged") from error

    @property
    def nothing(self) -> PCM:
        """No samples, (0, C) int16."""
        return np.empty((0, self.channels), np.int16)

    def decode(self, packet: bytes) -> PCM:
        """Return the packet's samples, (S, C) int16, concealed if it is damaged. Raises: Undecodable, NotTaken."""
        try:
            if not packet:
                raise ValueError("empty packet, which FFmpeg would take as the end of the stream")
            samples = self._decoded(packet)
        except _FFMPEG_ERRORS as error:
            self._damaged += 1
            self._losses.concealed += 1
            if self._damaged > MAX_DAMAGED:
                raise Undecodable(f"{self._damaged} packets in a row cannot be decoded as {self._name}") from error
            return self._concealed()
        self._good, self._samples, self._damaged = packet, len(samples) or self._samples, 0
        return samples

    def finish(self) -> None:
        """End the track. Raises: Undecodable if it had packets but none could be decoded."""
        if self._damaged and not self._good:
            raise Undecodable(f"none of the {self._damaged} packets can be decoded as {self._name}")

    def _decoded(self, packet: bytes) -> PCM:
        blocks = [self._checked(frame) for frame in self._context.decode(av.Packet(packet))]
        return blocks[0] if len(blocks) == 1 else np.concatenate([self.nothing, *blocks])

    def _checked(self, frame: AudioFrame) -> PCM:
        form = frame.sample_rate, frame.layout.nb_channels
        if form != (self.rate, self.channels):
            if self._track.codec in _FIXED_FORM:
                raise NotTaken(
                    f"the audio changes from {self.channels} channels at {self.rate} Hz to {form[1]} at {form[0]} Hz"
                )
            if self._good and form[1] > MAX_CHANNELS:
                raise ValueError(f"{form[1]} channels within a recording: the packet is damaged")
            self.rate, self.channels = form
        return self._reader.samples(frame)

    def _concealed(self) -> PCM:
        """Return samples for a lost packet: libopus's concealment, or silence as long as the last packet."""
        if self._track.codec is PacketCodec.OPUS and self._good and self._damaged <= MAX_GUESSED:
            try:
                return self._decoded(opus_loss(self._good))
            except _FFMPEG_ERRORS:
                pass
        return np.zeros((self._samples, self.channels), np.int16)


def opus_loss(packet: bytes) -> bytes:
    """Return a packet of the same duration with empty frames, which a decoder conceals. Source: RFC 6716, 3.2.5."""
    frames = {0: 1, 1: 2, 2: 2}.get(packet[0] & 3) or packet[1] & 0x3F
    return bytes([packet[0] | 3, frames])


class FrameReader:
    """Samples of the decoded frames of one stream."""

    def __init__(self) -> None:
        self._packer: AudioResampler | None = None  # it starts threads, so not one for each frame
        self._packed: tuple[str, str, int] | None = None  # format, layout and rate of its frames

    def samples(self, frame: AudioFrame) -> PCM:
        """Return the samples of a frame, (S, C) int16. Raises: NotTaken for a format that is not supported."""
        channels, form = frame.layout.nb_channels, frame.format
        if not 1 <= channels <= MAX_CHANNELS:
            raise NotTaken(f"recordings of {channels} channels are not supported; send 1 to {MAX_CHANNELS} channels")
        if form.packed.name not in _FORMATS:
            raise NotTaken(f"samples in FFmpeg's format {form.name} are not supported")
        if form.is_planar and channels >= POINTERS:
            return np.concatenate([self.samples(packed) for packed in self._pack(frame)])
        array = frame.to_ndarray()  # (C, S) planar, or (1, S·C)
        samples = array.T if form.is_planar else array.reshape(-1, channels)  # (S, C)
        if samples.dtype == np.int16:
            return np.ascontiguousarray(samples, np.int16)
        offset, scale = _SCALES[samples.dtype.str[1:]]
        return to_int16(samples.astype(np.float64) - offset, scale)

    def _pack(self, frame: AudioFrame) -> list[AudioFrame]:
        packed = frame.format.name, frame.layout.name, frame.sample_rate
        if self._packer is None or packed != self._packed:
            self._packer = AudioResampler(format=frame.format.packed, layout=frame.layout, rate=frame.sample_rate)
            self._packed = packed
        return self._packer.resample(frame)


def _open(track: Track) -> AudioCodecContext:
    codec = PacketCodec(track.codec)
    context = av.CodecContext.create(_DECODERS[codec], "r")
    assert isinstance(context, AudioCodecContext)
    context.thread_count = 1  # the default is a thread per core for each stream
    if track.setup:
        context.extradata = track.setup
    elif codec in _FIXED_FORM:
        context.sample_rate = track.rate
        context.layout = {1: "mono", 2: "stereo"}[track.channels]
    if codec is PacketCodec.FLAC:
        context.options = {"err_detect": "crccheck+explode"}
    context.open()
    return context
