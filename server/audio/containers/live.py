"""Decodes a live container of any kind to samples of one rate: sniff, demux, decode, fill gaps, resample. Sans I/O.

Several streams one after another on a connection are all decoded: each begins a new track.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np

from model.errors import install_hint
from server.audio.containers.sniffing import NAMED, Sniffer
from server.audio.containers.timeline import Timeline
from server.audio.formats import Encoding, Losses
from server.audio.packets import Demuxer, Item, PacketCodec, Timed, Track
from server.audio.pcm import PCM, ChannelResampler, downmix
from server.audio.raw import PlainReader
from server.errors import Inflated, NotInstalled, NotTaken

RATES = range(8_000, 48_001)
MAX_CHANNELS = 8
GAP_SHARE = 0.5  # of what a piece may decode to: the rest is left for the audio after the gap


class PacketDecoder(Protocol):
    """Packets of one track to samples."""

    @property
    def rate(self) -> int:
        """Hz, of what `decode` returned last."""

    @property
    def channels(self) -> int:
        """Channels, of what `decode` returned last."""

    def decode(self, packet: bytes) -> PCM:
        """Return the packet's samples, (S, C) int16. Raises: MediaError."""

    def finish(self) -> None:
        """End the track. Raises: Undecodable if none of its packets could be decoded."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A gap that is still to be filled."""

    seconds: float


class ContainerDecoder:
    """Decodes one live stream in a container. The output is mixed to one channel, or has exactly `channels`."""

    inline = False  # a message may hold many packets

    def __init__(self, encoding: Encoding, rate: int, channels: int, *, mixed: bool = True) -> None:
        """`encoding` is what the client named, or CONTAINER. `mixed`: to one channel, however many it has."""
        self._mixed = mixed
        self.rate = rate
        self.channels = channels
        self.bytes_per_s: float | None = None  # known with the track
        self._nothing: PCM = np.empty((0, channels), np.int16)
        kind = NAMED.get(encoding)
        self._demuxer: Demuxer | None = kind() if kind is not None else None
        self._sniffer = Sniffer()
        self._decoder: PacketDecoder | None = None
        self._output = Output(rate, channels)
        self._timeline = Timeline(0.0)
        self._skip = 0  # samples of the track that are no audio
        self._left: int | None = None  # samples of the track that are, where that is known
        self._held: list[Item | Silence | PCM] = []
        self._losses = Losses()

    @property
    def losses(self) -> Losses:
        """What was lost and mended so far."""
        self._losses.resyncs = 0 if self._demuxer is None else self._demuxer.resyncs
        return self._losses

    @property
    def holds(self) -> bool:
        """True while more of a gap is to be filled than a piece may decode to: `feed` of nothing returns more."""
        return bool(self._held)

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return what `chunk` completes, (S, C) int16. Raises: MediaError."""
        if self._demuxer is None:
            sniffed = self._sniffer.feed(chunk)
            if sniffed is None:
                return self._nothing
            self._demuxer, chunk = sniffed
        return self._decode_all(self._demuxer.feed(chunk), limit_s)

    def drain(self) -> PCM:
        """Return what is held back, (S, C) int16; the stream goes on. Raises: MediaError."""
        return self._nothing if self._demuxer is None else self._with_rest(self._demuxer.drain())

    def flush(self) -> PCM:
        """Return the end, (S, C) int16. Raises: MediaError."""
        if self._demuxer is None:
            self._sniffer.finish()
            return self._nothing
        rest = self._with_rest(self._demuxer.flush())
        if self._decoder is not None:
            self._decoder.finish()
        return rest

    def _with_rest(self, items: Iterator[Item]) -> PCM:
        last = self._decode_all(items, math.inf)  # one packet at most, and what is held
        return np.concatenate([last, self._output.end()])

    def _decode_all(self, items: Iterable[Item], limit_s: float) -> PCM:
        held, self._held = self._held, []
        work = chain(held, items)
        spent_s = 0.0
        for item in work:
            if isinstance(item, Track):
                self._begin(item)
                continue
            parts = self._parts(item)
            for part in parts:
                most_s = limit_s * GAP_SHARE - spent_s
                if isinstance(part, Silence) and part.seconds > most_s:
                    if limit_s <= 0:
                        raise Inflated("the timestamps leave more silence than the time that has passed")
                    spent_s += self._fill(max(most_s, 0.0))
                    self._held = [Silence(part.seconds - max(most_s, 0.0)), *parts, *work]
                    break
                spent_s += self._fill(part.seconds) if isinstance(part, Silence) else self._deliver(part)
                if spent_s > limit_s:
                    raise Inflated("the audio decodes to more than its bytes and its time account for")
        return self._output.take()

    def _parts(self, item: Item | Silence | PCM) -> Iterator[Silence | PCM]:
        """Decode an item; yield the silence before it, then its samples as sent, (S, C)."""
        if isinstance(item, Silence | np.ndarray):
            yield item
            return
        assert self._decoder is not None
        if isinstance(item, bytes):
            yield self._trimmed(self._decoder.decode(item))
            return
        assert isinstance(item, Timed)
        if item.start_s is not None and (gap_s := self._timeline.gap_before_s(item.start_s)):
            yield Silence(gap_s)
        blocks = [self._decoder.decode(packet) for packet in item.packets]
        block = blocks[0] if len(blocks) == 1 else np.concatenate([self._empty(), *blocks])
        if item.end_s is not None:
            gap_s = self._timeline.gap_within_s(item.end_s, len(block) / self._decoder.rate, last=item.last)
            if gap_s > 0:
                yield Silence(gap_s)
            elif gap_s < 0:
                block = _without_end(block, round(-gap_s * self._decoder.rate))
        yield self._trimmed(_without_end(block, round(item.discard_s * self._decoder.rate)))

    def _empty(self) -> PCM:
        assert self._decoder is not None
        return np.empty((0, self._decoder.channels), np.int16)

    def _trimmed(self, block: PCM) -> PCM:
        if self._skip:
            dropped = min(self._skip, len(block))
            self._skip -= dropped
            block = block[dropped:]
            assert self._decoder is not None
            self._timeline.advance(dropped / self._decoder.rate)
        if self._left is not None:
            block = block[: self._left]
            self._left -= len(block)
        return block

    def _deliver(self, block: PCM) -> float:
        """Take samples of the present track, (S, C) as sent; return their seconds."""
        assert self._decoder is not None
        if not len(block):
            return 0.0
        if (self._decoder.rate, self._decoder.channels) != self._output.form:
            self._open_output(self._decoder.rate, self._decoder.channels)
        self._output.push(block)
        seconds = len(block) / self._decoder.rate
        self._timeline.advance(seconds)
        return seconds

    def _fill(self, seconds: float) -> float:
        assert self._decoder is not None
        rate, channels = self._output.form
        self._output.push(np.zeros((round(seconds * rate), channels), np.int16))
        self._timeline.advance(seconds)
        return seconds

    def _begin(self, track: Track) -> None:
        if self._decoder is not None:
            self._decoder.finish()
        self._open_output(track.rate, track.channels)
        self.bytes_per_s = track.bytes_per_s
        self._decoder = _decoder_of(track, self._losses)
        self._timeline = Timeline(track.delay_s)
        self._skip, self._left = track.skip, track.length

    def _open_output(self, rate: int, channels: int) -> None:
        if rate not in RATES or not 1 <= channels <= MAX_CHANNELS:
            raise NotTaken(f"live audio of {channels} channels at {rate} Hz is not taken")
        if not self._mixed and self.channels != channels:
            raise NotTaken(f"channels: {self.channels} were announced, and the audio has {channels}")
        self._output.begin(rate, channels)


def _without_end(block: PCM, samples: int) -> PCM:
    return block[: max(0, len(block) - samples)]


class Output:
    """Mixes and resamples what was decoded; each track begins afresh."""

    def __init__(self, rate: int, channels: int) -> None:
        self._rate, self._channels = rate, channels
        self.form = (0, 0)  # rate and channels as sent
        self._resampler: ChannelResampler | None = None
        self._decoded: list[PCM] = []  # as sent
        self._converted: list[PCM] = [np.empty((0, channels), np.int16)]

    def begin(self, rate: int, channels: int) -> None:
        """Complete what came before; what follows has this form."""
        self._converted.append(self.end())
        self.form = (rate, channels)
        self._resampler = ChannelResampler(rate, self._rate, self._channels)

    def push(self, block: PCM) -> None:
        """Take samples, (S, C) as sent."""
        self._decoded.append(block)

    def take(self) -> PCM:
        """Return what is complete, (S, C) int16."""
        self._convert()
        taken = np.concatenate(self._converted)
        del self._converted[1:]
        return taken

    def end(self) -> PCM:
        """Return what is held back, (S, C) int16; what follows is filtered afresh."""
        self._convert()
        return self._converted[0] if self._resampler is None else self._resampler.flush()

    def _convert(self) -> None:
        if self._resampler is None or not self._decoded:
            return
        samples = np.concatenate(self._decoded)  # (S, C) as sent
        self._decoded.clear()
        if self._channels == 1:
            samples = downmix(samples)[:, None]  # (S, 1)
        self._converted.append(self._resampler.resample(samples))


def _decoder_of(track: Track, losses: Losses) -> PacketDecoder:
    if not isinstance(track.codec, PacketCodec):
        return PlainPackets(PlainReader(track.codec, track.rate, track.channels))
    try:
        from server.audio.ffmpeg_codec import Codec
    except ImportError as error:
        raise NotInstalled(f"{track.codec.value} needs the optional package: {install_hint('media')}") from error
    return Codec(track, losses)


class PlainPackets:
    """Samples without compression as a `PacketDecoder`."""

    def __init__(self, reader: PlainReader) -> None:
        self.rate, self.channels = reader.rate, reader.channels
        self.decode = reader.read

    def finish(self) -> None:
        """Nothing can be wrong with samples."""
