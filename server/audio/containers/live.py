"""Decodes a container of any kind as it arrives: find its demuxer, demux, decode, fill gaps, resample. Sans I/O.

Several streams one after another on a connection are all decoded: each begins a new track. A few bytes may hold hours
of audio, as silence does in every codec: each call decodes as much as its limit says, and the next one continues there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model.errors import install_hint
from server.audio.containers.demuxer_finder import DemuxerFinder
from server.audio.containers.timeline import Timeline
from server.audio.formats import Losses
from server.audio.packets import Demuxer, Item, PacketCodec, Timed, Track
from server.audio.pcm import PCM, ChannelResampler, downmix
from server.audio.raw import PlainReader
from server.errors import Inflated, NotInstalled, NotTaken

RATES = range(8_000, 48_001)
MAX_CHANNELS = 8
LEAST_LIMIT_S = 1e-3  # a budget with less left is exhausted: it may be less than a sample
TOO_SILENT = "the timestamps leave more silence than the time that has passed; send it in real time"
TOO_DENSE = "the audio decodes to more than its bytes and its time account for; send it in real time"


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
    """A gap that is still to be filled, of this many samples at the rate of the track."""

    samples: int

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, part: slice) -> Silence:
        return Silence(len(range(self.samples)[part]))


Part = Silence | PCM


class Output(Protocol):
    """Takes what was decoded."""

    @property
    def rate(self) -> int:
        """Output sample rate in Hz."""

    @property
    def channels(self) -> int:
        """Output channels."""

    @property
    def mixed(self) -> bool:
        """True if it takes one channel, however many the audio has."""

    @property
    def form(self) -> tuple[int, int]:
        """Rate and channels as sent."""

    @property
    def held_s(self) -> float:
        """Seconds of the audio pushed that `take` has not returned."""

    def begin(self, rate: int, channels: int) -> None:
        """Complete what came before; what follows is sent in this form. Raises: NotTaken."""

    def push(self, block: PCM) -> None:
        """Take samples at the rate as sent, (S, C) or (S, 1) mixed."""

    def take(self) -> PCM:
        """Return what is complete, (S, C) int16."""

    def end(self) -> None:
        """Complete what is held back."""


class ContainerDecoder:
    """Decodes one stream in a container."""

    inline = False  # a message may hold many packets

    def __init__(self, output: Output) -> None:
        """`output` has the form in which it returns samples."""
        self._output = output
        self.bytes_per_s: float | None = None  # known with the track
        self._finder = DemuxerFinder()
        self._demuxer: Demuxer | None = None
        self._decoder: PacketDecoder | None = None
        self._timeline = Timeline(0.0)
        self._rate = 0  # of the track, in whose samples the next two are
        self._skip = 0  # samples of the track that are no audio
        self._left: int | None = None  # samples of the track that are, where that is known
        self._work: deque[Iterator[Part]] = deque()  # that earlier calls left; it is decoded as it is asked for
        self._losses = Losses()
        self._problem: str | None = None  # that the end shows

    @property
    def rate(self) -> int:
        """Output sample rate in Hz."""
        return self._output.rate

    @property
    def channels(self) -> int:
        """Output channels."""
        return self._output.channels

    @property
    def losses(self) -> Losses:
        """What was lost and mended so far."""
        self._losses.resyncs = 0 if self._demuxer is None else self._demuxer.resyncs
        return self._losses

    @property
    def warnings(self) -> list[str]:
        """What was mended, and at the end what is missing or left out, as `kind: sentence`."""
        return [*([self._problem] if self._problem else []), *self.losses.warnings()]

    @property
    def holds(self) -> bool:
        """True while the bytes so far hold more than the last limit: `feed` of nothing returns more of it."""
        return bool(self._work)

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return what `chunk` completes, (S, C) int16, up to a limit. Raises: MediaError; Inflated if it is used up."""
        self._work.append(self._demuxed(chunk))
        self._decode(limit_s)
        return self._output.take()

    def drain(self, limit_s: float = math.inf) -> PCM:
        """Return what is held back, (S, C) int16; the stream continues. Again, if `holds`. Raises: MediaError."""
        if self._demuxer is not None:
            self._rest(self._demuxer.drain, limit_s)
        return self._output.take()

    def flush(self, limit_s: float = math.inf) -> PCM:
        """Return the end, (S, C) int16. Again, if `holds`. Raises: MediaError."""
        if self._demuxer is None:
            self._finder.finish()
        elif self._rest(self._demuxer.flush, limit_s):
            self._problem = self._demuxer.problem()
            if self._decoder is not None:
                self._decoder.finish()
        return self._output.take()

    def _rest(self, source: Callable[[], Iterator[Item]], limit_s: float) -> bool:
        """Decode what the demuxer holds back, and what the resampler does; return whether that was all."""
        self._work.append(self._parts(source()))
        self._decode(limit_s)
        if self.holds:
            return False
        self._output.end()
        return True

    def _decode(self, limit_s: float) -> None:
        """Decode up to a limit what is left of earlier calls. Raises: MediaError; Inflated if the limit is used up."""
        left_s = limit_s if limit_s < LEAST_LIMIT_S else max(limit_s - self._output.held_s, LEAST_LIMIT_S)
        while self._work:
            part = next(self._work[0], None)
            if part is None:
                self._work.popleft()
                continue
            assert self._decoder is not None
            rate = self._decoder.rate
            if len(part) <= max(left_s, 0.0) * rate:
                self._deliver(part)
                left_s -= len(part) / rate
                continue
            if limit_s < LEAST_LIMIT_S:
                raise Inflated(TOO_SILENT if isinstance(part, Silence) else TOO_DENSE)
            end = int(left_s * rate)
            self._deliver(part[:end])
            self._work.appendleft(iter([part[end:]]))
            return

    def _demuxed(self, chunk: bytes) -> Iterator[Part]:
        if self._demuxer is None:
            found = self._finder.feed(chunk)
            if found is None:
                return
            self._demuxer, chunk = found
        yield from self._parts(self._demuxer.feed(chunk))

    def _parts(self, items: Iterable[Item]) -> Iterator[Part]:
        """Decode items one by one, (S, C) as sent; begin each track when what was before it is delivered."""
        for item in items:
            if isinstance(item, Track):
                self._begin(item)
            elif isinstance(item, bytes):
                yield self._trimmed(self._decoded(item))
            else:
                yield from self._timed(item)

    def _timed(self, item: Timed) -> Iterator[Part]:
        """Yield the silence before packets whose time is known, then their samples without what lies over the end."""
        assert self._decoder is not None
        if item.start_s is not None and (gap_s := self._timeline.gap_before_s(item.start_s)):
            yield self._silence(gap_s)
        blocks: Iterator[PCM] = map(self._decoded, item.packets)
        if item.end_s is None:
            for block in blocks:
                yield self._trimmed(_without_end(block, round(item.discard_s * self._decoder.rate)))
            return
        length = item.samples
        if length is None:
            whole = np.concatenate([self._empty(), *blocks])  # at most 255 packets
            blocks, length = iter([whole]), len(whole)
        rate = self._decoder.rate
        gap_s = self._timeline.gap_within_s(item.end_s, length / rate, last=item.last)
        if gap_s > 0:
            yield self._silence(gap_s)
        left = length - max(0, round(-gap_s * rate)) if gap_s < 0 else length
        for block in blocks:
            yield self._trimmed(block[: max(0, left)])
            left -= len(block)

    def _decoded(self, packet: bytes) -> PCM:
        """Decode a packet, (S, C) mixed if it is to be: pages are kept until there is room for them."""
        assert self._decoder is not None
        samples = self._decoder.decode(packet)
        return downmix(samples)[:, None] if self._output.mixed else samples

    def _silence(self, seconds: float) -> Silence:
        assert self._decoder is not None
        return Silence(round(seconds * self._decoder.rate))

    def _empty(self) -> PCM:
        assert self._decoder is not None
        return np.empty((0, 1 if self._output.mixed else self._decoder.channels), np.int16)

    def _trimmed(self, block: PCM) -> PCM:
        assert self._decoder is not None
        if self._decoder.rate != self._rate:  # AAC may decode to twice the rate of its header (SBR)
            self._skip = self._skip * self._decoder.rate // self._rate
            self._left = None if self._left is None else self._left * self._decoder.rate // self._rate
            self._rate = self._decoder.rate
        if self._skip:
            dropped = min(self._skip, len(block))
            self._skip -= dropped
            block = block[dropped:]
            self._timeline.advance(dropped / self._decoder.rate)
        if self._left is not None:
            block = block[: self._left]
            self._left -= len(block)
        return block

    def _deliver(self, part: Part) -> None:
        """Take audio of the present track."""
        assert self._decoder is not None
        if not len(part):
            return
        if (self._decoder.rate, self._decoder.channels) != self._output.form:
            self._output.begin(self._decoder.rate, self._decoder.channels)
        if isinstance(part, Silence):
            part = np.zeros((len(part), 1 if self._output.mixed else self._decoder.channels), np.int16)
        self._output.push(part)
        self._timeline.advance(len(part) / self._decoder.rate)

    def _begin(self, track: Track) -> None:
        if self._decoder is not None:
            self._decoder.finish()
        self._output.begin(track.rate, track.channels)
        self.bytes_per_s = track.bytes_per_s
        self._decoder = _decoder_of(track, self._losses)
        self._timeline = Timeline(track.delay_s)
        self._rate, self._skip, self._left = track.rate, track.skip, track.length


def _without_end(block: PCM, samples: int) -> PCM:
    return block[: max(0, len(block) - samples)]


class Resampled:
    """The output of a live stream: one rate, and one channel or as many as were announced."""

    def __init__(self, rate: int, channels: int, *, mixed: bool = True) -> None:
        """`mixed`: to one channel, however many the audio has."""
        self.rate, self.channels, self.mixed = rate, channels, mixed
        self.form = (0, 0)  # rate and channels as sent
        self.held_s = 1 / rate  # pushed and not returned, and the sample by which a filter's end may be rounded up
        self._resampler: ChannelResampler | None = None
        self._decoded: list[PCM] = []  # at the rate as sent
        self._converted: list[PCM] = [np.empty((0, channels), np.int16)]

    def begin(self, rate: int, channels: int) -> None:
        """Complete what came before; what follows is sent in this form. Raises: NotTaken."""
        if rate not in RATES or not 1 <= channels <= MAX_CHANNELS:
            raise NotTaken(f"live audio of {channels} channels at {rate} Hz is not taken")
        if not self.mixed and self.channels != channels:
            raise NotTaken(f"channels: {self.channels} were announced, and the audio has {channels}")
        self.end()
        self.form = (rate, channels)
        self._resampler = ChannelResampler(rate, self.rate, self.channels)

    def push(self, block: PCM) -> None:
        """Take samples at the rate as sent, (S, C)."""
        self._decoded.append(block)
        self.held_s += len(block) / self.form[0]

    def take(self) -> PCM:
        """Return what is complete, (S, C) int16."""
        self._convert()
        taken = np.concatenate(self._converted)
        del self._converted[1:]
        self.held_s -= len(taken) / self.rate
        return taken

    def end(self) -> None:
        """Complete what the resampler holds back; what follows is filtered afresh."""
        self._convert()
        if self._resampler is not None:
            self._converted.append(self._resampler.flush())
            self.held_s = (1 + sum(map(len, self._converted))) / self.rate

    def _convert(self) -> None:
        if self._resampler is None or not self._decoded:
            return
        samples = np.concatenate(self._decoded)  # (S, C)
        self._decoded.clear()
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
