"""Decodes a live container of any kind to samples of one rate: sniff, demux, decode, mix, resample. Sans I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from model.errors import install_hint
from server.audio.containers import flac, ogg, wav, webm
from server.audio.formats import Encoding
from server.audio.packets import Demuxer, PacketCodec, Track
from server.audio.pcm import PCM, ChannelResampler, downmix
from server.audio.raw import PlainReader
from server.errors import Inflated, NotInstalled, NotTaken, Undecodable

RATES = range(8_000, 48_001)
MAX_CHANNELS = 8
SNIFF_BYTES = 8  # enough to tell all kinds apart
_KINDS: tuple[tuple[bytes | tuple[bytes, ...], Callable[[], Demuxer]], ...] = (
    (wav.MAGIC, wav.WavDemuxer),
    (ogg.MAGIC, ogg.OggDemuxer),
    (flac.MAGIC, flac.FlacDemuxer),
    (webm.MAGIC, webm.WebmDemuxer),
)
_NAMED: dict[Encoding, Callable[[], Demuxer]] = {Encoding.OGG_OPUS: ogg.OggDemuxer, Encoding.FLAC: flac.FlacDemuxer}


class ContainerDecoder:
    """Decodes one live stream in a container. The output is mixed to one channel, or has exactly `channels`."""

    inline = False  # a message may hold many packets

    def __init__(self, encoding: Encoding, rate: int, channels: int, *, mixed: bool = True) -> None:
        """`encoding` is what the client named, or CONTAINER. `mixed`: to one channel, however many it has."""
        self._mixed = mixed
        self.rate = rate
        self.channels = channels
        self._nothing: PCM = np.empty((0, channels), np.int16)
        kind = _NAMED.get(encoding)
        self._demuxer = kind() if kind is not None else None
        self._sniffed = b""
        self._decode: Callable[[bytes], PCM] | None = None
        self._resampler: ChannelResampler | None = None
        self._track: Track | None = None

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return what `chunk` completes, (S, C) int16. Raises: MediaError."""
        if self._demuxer is None:
            self._sniffed += chunk
            if len(self._sniffed) < SNIFF_BYTES:
                return self._nothing
            self._demuxer, chunk, self._sniffed = _sniff(self._sniffed), self._sniffed, b""
        return self._decode_all(self._demuxer.feed(chunk), limit_s)

    def drain(self) -> PCM:
        """Return what is held back, (S, C) int16; the stream goes on. Raises: MediaError."""
        return self._nothing if self._demuxer is None else self._with_rest(self._demuxer.drain())

    def flush(self) -> PCM:
        """Return the end, (S, C) int16. Raises: MediaError."""
        if self._demuxer is None:
            if self._sniffed:
                raise Undecodable("the audio ends before it has begun")
            return self._nothing
        return self._with_rest(self._demuxer.flush())

    def _with_rest(self, packets: Iterator[bytes]) -> PCM:
        last = self._decode_all(packets, math.inf)  # one packet at most
        return np.concatenate([last, self._rest()])

    def _decode_all(self, items: Iterator[Track | bytes], limit_s: float) -> PCM:
        converted = [self._nothing]
        decoded: list[PCM] = []
        spent_s = 0.0
        for item in items:
            if isinstance(item, Track):
                converted += [self._convert(decoded), self._rest()]
                decoded = []
                self._begin(item)
                continue
            assert self._decode is not None
            assert self._track is not None
            decoded.append(self._decode(item))  # (S, C) as sent
            spent_s += len(decoded[-1]) / self._track.rate
            if spent_s > limit_s:
                raise Inflated("the audio decodes to more than its bytes and its time account for")
        converted.append(self._convert(decoded))
        return np.concatenate(converted)  # (S, C)

    def _convert(self, decoded: list[PCM]) -> PCM:
        """Mix where one channel is wanted, and resample."""
        if self._resampler is None or not decoded:
            return self._nothing
        samples = np.concatenate(decoded)  # (S, C) as sent
        if self.channels == 1:
            samples = downmix(samples)[:, None]  # (S, 1)
        return self._resampler.resample(samples)

    def _rest(self) -> PCM:
        """What the resampler holds back; it starts afresh."""
        return self._nothing if self._resampler is None else self._resampler.flush()

    def _begin(self, track: Track) -> None:
        if track.rate not in RATES or not 1 <= track.channels <= MAX_CHANNELS:
            raise NotTaken(f"live audio of {track.channels} channels at {track.rate} Hz is not taken")
        if not self._mixed and self.channels != track.channels:
            raise NotTaken(f"channels: {self.channels} were announced, and the audio has {track.channels}")
        self._track = track
        self._decode = _decoder_of(track)
        self._resampler = ChannelResampler(track.rate, self.rate, self.channels)


def _sniff(first: bytes) -> Demuxer:
    """Return the demuxer of a stream that begins with these bytes. Raises: NotTaken, Undecodable."""
    for magic, kind in _KINDS:
        if first.startswith(magic):
            return kind()
    is_mp3 = first.startswith(b"ID3") or (first[0] == 0xFF and first[1] & 0xE0 == 0xE0)
    if is_mp3 or first[4:8] == b"ftyp":
        raise NotTaken(
            "MP3, AAC and MP4 are not taken in live streams; upload the recording, or send WebM, Ogg or FLAC"
        )
    raise Undecodable("no WAV, Ogg, WebM or FLAC begins so; raw audio needs encoding and sample_rate")


def _decoder_of(track: Track) -> Callable[[bytes], PCM]:
    if not isinstance(track.codec, PacketCodec):
        return PlainReader(track.codec, track.rate, track.channels).read
    try:
        from server.audio.ffmpeg_codec import Codec
    except ImportError as error:
        raise NotInstalled(f"{track.codec.value} needs the optional package: {install_hint('media')}") from error
    return Codec(track).decode
