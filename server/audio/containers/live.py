"""Streaming decoder for all containers: select the demuxer, demux, decode, fill gaps, resample. Sans I/O.

Concatenated streams on one connection are all decoded; each starts a new track. A few bytes may decode to hours of
audio (silence, in every codec), so each call decodes up to a limit and the next call continues from there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from server.audio.containers.demuxer_finder import DemuxerFinder
from server.audio.containers.timeline import Timeline
from server.audio.ffmpeg_codec import Codec
from server.audio.formats import Losses
from server.audio.packets import Demuxer, Item, PacketCodec, Timed, Track
from server.audio.pcm import MAX_CHANNELS, PCM, ChannelResampler, downmix
from server.audio.raw import PlainReader
from server.errors import Inflated, NotTaken

RATES = range(8_000, 48_001)
LEAST_LIMIT_S = 1e-3  # a smaller limit counts as used up: it may be less than one sample
TOO_SILENT = "the gaps between timestamps add up to far more than the time elapsed; send the audio in real time"
TOO_DENSE = "the audio decodes to far more than its size and the time elapsed allow; send the audio in real time"


PacketDecoder = PlainReader | Codec
"""Decoder of the packets of one track; `rate` and `channels` are those of the last `decode`."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A gap to fill with silence, of this many samples at the rate of the track."""

    samples: int

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, part: slice) -> Silence:
        return Silence(len(range(self.samples)[part]))


Part = Silence | PCM


class ContainerDecoder:
    """Decoder of one stream in a container."""

    inline = False  # a message may hold many packets

    def __init__(self, output: Output) -> None:
        """`output` determines rate and channels of the samples returned."""
        self._output = output
        self.bytes_per_s: float | None = None  # known with the track
        self._finder = DemuxerFinder()
        self._demuxer: Demuxer | None = None
        self._decoder: PacketDecoder | None = None
        self._timeline = Timeline(0.0)
        self._rate = 0  # of the track; unit of the next two
        self._skip = 0  # samples still to be dropped at the start of the track
        self._left: int | None = None  # samples left of the track, None if unknown
        self._work: deque[Iterator[Part]] = deque()  # left over from earlier calls, decoded lazily
        self._losses = Losses()
        self._problem: str | None = None  # warning about the end of the stream

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
        """Losses repaired so far."""
        if self._demuxer is not None:
            self._losses.resyncs, self._losses.other_tracks = self._demuxer.resyncs, self._demuxer.other_tracks
        return self._losses

    @property
    def warnings(self) -> list[str]:
        """Repaired losses, and at the end what is missing or skipped, as `kind: sentence`."""
        return [*([self._problem] if self._problem else []), *self.losses.warnings()]

    @property
    def holds(self) -> bool:
        """True while the bytes so far hold more audio than the last limit; `feed` of b"" returns more of it."""
        return bool(self._work)

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return the samples that `chunk` completes, (S, C) int16, up to a limit.

        Raises: MediaError; Inflated if the limit is 0 and there is more.
        """
        self._work.append(self._demuxed(chunk))
        self._decode(limit_s)
        return self._output.take()

    def drain(self, limit_s: float = math.inf) -> PCM:
        """Return samples held back, (S, C) int16; the stream continues. Repeat while `holds`. Raises: MediaError."""
        if self._demuxer is not None:
            self._rest(self._demuxer.drain, limit_s)
        return self._output.take()

    def flush(self, limit_s: float = math.inf) -> PCM:
        """Return the last samples, (S, C) int16. Repeat while `holds`. Raises: MediaError."""
        if self._demuxer is None:
            self._finder.finish()
        elif self._rest(self._demuxer.flush, limit_s):
            self._problem = self._demuxer.problem()
            if self._decoder is not None:
                self._decoder.finish()
        return self._output.take()

    def _rest(self, source: Callable[[], Iterator[Item]], limit_s: float) -> bool:
        """Decode what demuxer and resampler hold back; return whether that was all."""
        self._work.append(self._parts(source()))
        self._decode(limit_s)
        if self.holds:
            return False
        self._output.end()
        return True

    def _decode(self, limit_s: float) -> None:
        """Decode pending work up to a limit. Raises: MediaError; Inflated if the limit is 0 and there is work left."""
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
            demuxer = self._finder.feed(chunk)
            if demuxer is None:
                return
            self._demuxer, chunk = demuxer
        yield from self._parts(self._demuxer.feed(chunk))

    def _parts(self, items: Iterable[Item]) -> Iterator[Part]:
        """Decode items one by one, (S, C) as sent; start each track after the parts before it were delivered."""
        for item in items:
            if isinstance(item, Track):
                self._begin(item)
            elif isinstance(item, bytes):
                yield self._trimmed(self._decoded(item))
            else:
                yield from self._timed(item)

    def _timed(self, item: Timed) -> Iterator[Part]:
        """Yield the silence before timed packets, then their samples, cut at the end time."""
        assert self._decoder is not None
        if item.start_s is not None and (gap_s := self._timeline.gap_before_s(item.start_s)):
            yield self._silence(gap_s)
        blocks: Iterator[PCM] = map(self._decoded, item.packets)
        if item.end_s is None:
            for block in blocks:
                yield self._trimmed(block[: max(0, len(block) - round(item.discard_s * self._decoder.rate))])
            return
        length = item.samples
        if length is None:
            whole = np.concatenate([self._empty(), *blocks])  # at most 255 packets
            blocks, length = iter([whole]), len(whole)
        rate = self._decoder.rate
        gap_s = self._timeline.gap_within_s(item.end_s, length / rate, len(item.packets), last=item.last)
        if gap_s > 0:
            yield self._silence(gap_s)
        left = length - max(0, round(-gap_s * rate)) if gap_s < 0 else length
        for block in blocks:
            yield self._trimmed(block[: max(0, left)])
            left -= len(block)

    def _decoded(self, packet: bytes) -> PCM:
        """Decode a packet, (S, C), or (S, 1) if the output is mixed."""
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
        if self._decoder.rate != self._rate:  # AAC may decode to twice the rate in its header (SBR)
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
        """Push a part of the current track to the output."""
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


class Resampled:
    """Output of a live stream: resampled to one rate, mixed to one channel or with the announced channels."""

    def __init__(self, rate: int, channels: int, *, mixed: bool = True) -> None:
        """`mixed`: mix the audio down to one channel."""
        self.rate, self.channels, self.mixed = rate, channels, mixed
        self.form = (0, 0)  # rate and channels as sent
        self.held_s = 1 / rate  # pushed and not returned, plus one sample by which a filter's end may be rounded up
        self._resampler: ChannelResampler | None = None
        self._decoded: list[PCM] = []  # at the rate as sent
        self._converted: list[PCM] = [np.empty((0, channels), np.int16)]

    def begin(self, rate: int, channels: int) -> None:
        """Finish the samples so far and start ones of this form. Raises: NotTaken."""
        if rate not in RATES or not 1 <= channels <= MAX_CHANNELS:
            raise NotTaken(
                f"{channels} channels at {rate} Hz are not supported live; "
                f"send at most {MAX_CHANNELS} at {RATES[0]} to {RATES[-1]} Hz"
            )
        if not self.mixed and self.channels != channels:
            raise NotTaken(f"channels: {self.channels} announced, but the audio has {channels}")
        self.end()
        self.form = (rate, channels)
        self._resampler = ChannelResampler(rate, self.rate, self.channels)

    def push(self, block: PCM) -> None:
        """Append samples at the rate as sent, (S, C)."""
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
        """Flush and reset the resampler."""
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


@dataclass(frozen=True, slots=True)
class _Block:
    """Samples, (S, C) int16, of the recording `part` in the body, at `rate` Hz."""

    part: int
    rate: int
    samples: PCM


class UnconvertedParts:
    """Decoder output at the rates and with the channels of the recordings in a body, which may differ."""

    mixed = False
    held_s = 0.0

    def __init__(self) -> None:
        self.form = (0, 0)  # of the samples pushed last
        self.rate = self.channels = self.part = 0  # of the samples taken last
        self._pushed_part = -1
        self._blocks: deque[_Block] = deque()

    def begin(self, rate: int, channels: int) -> None:
        """Start the samples of another recording, or of another form. Raises: NotTaken if that is invalid."""
        if rate < 1 or channels < 1:
            raise NotTaken(f"recordings of {channels} channels at {rate} Hz are not supported")
        self.form = (rate, channels)
        self._pushed_part += 1

    def push(self, block: PCM) -> None:
        """Append samples, (S, C)."""
        self._blocks.append(_Block(self._pushed_part, self.form[0], block))

    def take(self) -> PCM:
        """Return the samples of the earliest recording since the last call, (S, C) int16."""
        blocks = list[PCM]()
        if self._blocks:
            self.part, self.rate = self._blocks[0].part, self._blocks[0].rate
            while self._blocks and self._blocks[0].part == self.part:
                blocks.append(self._blocks.popleft().samples)
            self.channels = blocks[0].shape[1]
        return np.concatenate(blocks) if blocks else np.empty((0, self.channels), np.int16)

    def end(self) -> None:
        """Do nothing: no samples are held back."""


Output = Resampled | UnconvertedParts
"""Receiver of decoded samples, which returns them in its output form."""


def _decoder_of(track: Track, losses: Losses) -> PacketDecoder:
    if not isinstance(track.codec, PacketCodec):
        return PlainReader(track.codec, track.rate, track.channels)
    return Codec(track, losses)
