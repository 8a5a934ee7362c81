"""A live container of any kind to samples of one rate: sniff, take apart, decode, mix, resample. Sans I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from model.errors import install_hint
from server.audio.containers import flac, ogg, wav, webm
from server.audio.formats import Encoding
from server.audio.packets import Demuxer, PacketCodec, Track
from server.audio.pcm import PCM, Resampler, downmix
from server.audio.raw import PlainReader
from server.errors import Inflated, NotInstalled, NotTaken, Undecodable

RATES = range(8_000, 48_001)
MAX_CHANNELS = 8
SNIFF_BYTES = 8  # enough to tell all kinds apart
_KINDS: tuple[tuple[bytes, Callable[[], Demuxer]], ...] = (
    (wav.MAGIC, wav.WavDemuxer),
    (ogg.MAGIC, ogg.OggDemuxer),
    (flac.MAGIC, flac.FlacDemuxer),
    (webm.MAGIC, webm.WebmDemuxer),
)
_NAMED: dict[Encoding, Callable[[], Demuxer]] = {Encoding.OGG_OPUS: ogg.OggDemuxer, Encoding.FLAC: flac.FlacDemuxer}


class ContainerDecoder:
    """One live stream in a container. What comes out is mixed to one channel, or has exactly `channels`."""

    inline = False  # a message may hold many packets

    def __init__(self, encoding: Encoding, rate: int, channels: int, *, mixed: bool = True) -> None:
        """Take the encoding that the client named, or CONTAINER; `mixed`: to one channel, whatever comes."""
        self._mixed = mixed
        self.rate = rate
        self.channels = channels
        kind = _NAMED.get(encoding)
        self._demuxer = kind() if kind is not None else None
        self._sniffed = b""
        self._decode: Callable[[bytes], PCM] | None = None
        self._shaper: Shaper | None = None
        self._track: Track | None = None

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return what `chunk` completes, (S, C) int16. Raises: MediaError."""
        if self._demuxer is None:
            self._sniffed += chunk
            if len(self._sniffed) < SNIFF_BYTES:
                return self._nothing()
            self._demuxer, chunk, self._sniffed = _sniff(self._sniffed), self._sniffed, b""
        return self._shape(self._demuxer.feed(chunk), limit_s)

    def settle(self) -> PCM:
        """Return what is held back, (S, C) int16; the stream goes on. Raises: MediaError."""
        return self._nothing() if self._demuxer is None else self._end(self._demuxer.settle())

    def flush(self) -> PCM:
        """Return the end, (S, C) int16. Raises: MediaError."""
        if self._demuxer is None:
            if self._sniffed:
                raise Undecodable("the audio ends before it has begun")
            return self._nothing()
        return self._end(self._demuxer.flush())

    def _end(self, packets: Iterator[bytes]) -> PCM:
        last = self._shape(packets, float("inf"))  # one packet at most
        return np.concatenate([last, self._held_back()])

    def _shape(self, items: Iterator[Track | bytes], limit_s: float) -> PCM:
        shaped = [self._nothing()]
        decoded: list[PCM] = []
        spent_s = 0.0
        for item in items:
            if isinstance(item, Track):
                shaped += [self._shaped(decoded), self._held_back()]
                decoded = []
                self._begin(item)
                continue
            assert self._decode is not None
            assert self._track is not None
            decoded.append(self._decode(item))  # (S, C) as sent
            spent_s += len(decoded[-1]) / self._track.rate
            if spent_s > limit_s:
                raise Inflated("the audio decodes to more than its bytes and its time account for")
        shaped.append(self._shaped(decoded))
        return np.concatenate(shaped)  # (S, C)

    def _shaped(self, decoded: list[PCM]) -> PCM:
        if self._shaper is None or not decoded:
            return self._nothing()
        return self._shaper.shape(np.concatenate(decoded))

    def _held_back(self) -> PCM:
        return self._nothing() if self._shaper is None else self._shaper.settle()

    def _begin(self, track: Track) -> None:
        if track.rate not in RATES or not 1 <= track.channels <= MAX_CHANNELS:
            raise NotTaken(f"live audio of {track.channels} channels at {track.rate} Hz is not taken")
        if not self._mixed and self.channels != track.channels:
            raise NotTaken(f"channels: {self.channels} were announced, and the audio has {track.channels}")
        self._track = track
        self._decode = _decoder_of(track)
        self._shaper = Shaper(track.rate, self.rate, self.channels)

    def _nothing(self) -> PCM:
        return np.empty((0, self.channels), np.int16)


class Shaper:
    """Mixes to one channel where one is wanted, and resamples each."""

    def __init__(self, rate_in: int, rate_out: int, channels: int) -> None:
        """Take the rates in Hz, and the channels that come out."""
        self._mixed = channels == 1
        self._nothing: PCM = np.empty((0, channels), np.int16)
        self._resamplers = [Resampler(rate_in, rate_out) for _ in range(channels)] if rate_in != rate_out else []

    def shape(self, samples: PCM) -> PCM:
        """(S, C) int16 as decoded to (S, C) int16 as wanted, as far as it is complete."""
        if self._mixed:
            samples = downmix(samples)[:, None]  # (S, 1)
        if not self._resamplers:
            return samples
        return np.stack([r.resample(samples[:, i]) for i, r in enumerate(self._resamplers)], axis=1)  # (S, C)

    def settle(self) -> PCM:
        """Return what is held back, and start afresh."""
        if not self._resamplers:
            return self._nothing
        return np.stack([r.flush() for r in self._resamplers], axis=1)  # (S, C)


def _sniff(first: bytes) -> Demuxer:
    """Return what takes a stream apart that begins so. Raises: NotTaken, Undecodable."""
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
        return PlainReader(track.codec, track.channels).read
    try:
        from server.audio.ffmpeg_codec import Codec
    except ImportError as error:
        raise NotInstalled(f"{track.codec.value} needs the optional package: {install_hint('media')}") from error
    return Codec(track).decode
