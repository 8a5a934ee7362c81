"""Uploaded containers, read by the demuxers of live streams, so that both give the same audio and the same times.

libsndfile and FFmpeg ignore gaps in the timestamps: pauses in which nothing was sent (DTX), and lost packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from server.audio.containers.demuxer_finder import DemuxerFinder
from server.audio.containers.live import ContainerDecoder
from server.audio.packets import Item, Timed
from server.audio.pcm import BLOCK_S, PCM
from server.errors import BadAudio, MediaError, NotTaken, Undecodable

KINDS = frozenset({"ogg", "matroska", "mov", "aac"})
"""Kinds whose packets have timestamps, and ADTS, because FFmpeg rejects an ADTS file that ends inside a frame."""
PIECE_BYTES = 2**16


class Unconverted:
    """Decoder output at the rate and with the channels of the audio itself."""

    mixed = False
    held_s = 0.0

    def __init__(self) -> None:
        self.form = (0, 0)
        self._blocks: list[PCM] = []
        self._has_samples = False

    @property
    def rate(self) -> int:
        """Hz."""
        return self.form[0]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.form[1]

    def begin(self, rate: int, channels: int) -> None:
        """Start samples of this form. Raises: NotTaken if it is invalid, or differs from that of earlier samples."""
        if rate < 1 or channels < 1:
            raise NotTaken(f"recordings of {channels} channels at {rate} Hz are not supported")
        if self._has_samples and (rate, channels) != self.form:
            raise NotTaken(
                f"the recording changes from {self.channels} channels at {self.rate} Hz to {channels} at {rate} Hz"
            )
        self.form = (rate, channels)

    def push(self, block: PCM) -> None:
        """Append samples, (S, C)."""
        self._has_samples = True
        self._blocks.append(block)

    def take(self) -> PCM:
        """Return the samples since the last call, (S, C) int16."""
        taken = np.concatenate([np.empty((0, self.channels), np.int16), *self._blocks])
        self._blocks.clear()
        return taken

    def end(self) -> None:
        """Do nothing: no samples are held back."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Result of demuxing a body: its length by the timestamps, and a warning about missing or skipped parts."""

    length_s: float | None
    problem: str | None


def contents_of(body: bytes) -> Contents:
    """Demux a whole container without decoding it. Raises: MediaError if the live demuxers cannot read it."""
    finder, demuxer, times = DemuxerFinder(), None, Times()
    for piece in _pieces(body):
        if demuxer is not None:
            times.take(demuxer.feed(piece))
        elif (found := finder.feed(piece)) is not None:
            demuxer, first = found
            times.take(demuxer.feed(first))
    if demuxer is None:
        raise Undecodable("the audio ends inside its header")
    times.take(demuxer.flush())
    return Contents(times.length_s, demuxer.problem())


class Times:
    """Timestamps of the first and the last packet."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = 0.0

    def take(self, items: Iterator[Item]) -> None:
        """Record the timestamps of a demuxer's items. Raises: MediaError."""
        for item in items:
            if isinstance(item, Timed):
                time_s = item.end_s if item.start_s is None else item.start_s
                if time_s is not None:
                    self._first_s = time_s if self._first_s is None else self._first_s
                    self._last_s = time_s

    @property
    def length_s(self) -> float | None:
        """Seconds from the first timestamp to the last, None if there were none."""
        return None if self._first_s is None else self._last_s - self._first_s


class ContainerSource:
    """A recording in a container that the live demuxers read."""

    def __init__(self, body: bytes, stated_s: float | None) -> None:
        """Decode the first samples; `stated_s` is the length by its timestamps. Raises: BadAudio."""
        self.stated_s = stated_s
        self._pieces = _pieces(body)
        self._output = Unconverted()
        self._decoder = ContainerDecoder(self._output)
        self._ended = False
        self._first: PCM | None = self._next()  # sets rate and channels
        if not self.rate:
            raise BadAudio("; ".join(["the recording has no audio", *self.warnings]))
        self.part = 0

    @property
    def rate(self) -> int:
        """Hz."""
        return self._output.rate

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self._output.channels

    @property
    def warnings(self) -> list[str]:
        """Damage repaired so far, and at the end what is missing, as `kind: sentence`."""
        return self._decoder.warnings

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, empty at the end. Raises: BadAudio."""
        first, self._first = self._first, None
        return self._next() if first is None else first

    def _next(self) -> PCM:
        samples = self._output.take()
        try:
            while not len(samples) and not self._ended:
                if self._decoder.holds:
                    samples = self._decoder.feed(b"", BLOCK_S)
                elif piece := next(self._pieces, b""):
                    samples = self._decoder.feed(piece, BLOCK_S)
                else:
                    samples = self._decoder.flush(BLOCK_S)
                    self._ended = not self._decoder.holds
        except MediaError as error:
            raise BadAudio(str(error)) from error
        return samples


def _pieces(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), PIECE_BYTES):
        yield body[at : at + PIECE_BYTES]
