"""An uploaded container as live streams read it, so that a recording has the same audio, and times, on both ways.

Other readers of files leave out what timestamps say: pauses in which nothing was sent (DTX), and lost packets.
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
"""Kinds whose packets have times, and ADTS, of which FFmpeg refuses a torn end."""
PIECE_BYTES = 2**16


class AsSent:
    """The output of a decoder without conversion: it has the rate and the channels of the audio."""

    mixed = False
    held_s = 0.0

    def __init__(self) -> None:
        self.form = (0, 0)
        self._blocks: list[PCM] = []
        self._heard = False

    @property
    def rate(self) -> int:
        """Hz."""
        return self.form[0]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.form[1]

    def begin(self, rate: int, channels: int) -> None:
        """Take this form. Raises: NotTaken for one without a rate, or another one than that of earlier samples."""
        if rate < 1 or channels < 1:
            raise NotTaken(f"recordings of {channels} channels at {rate} Hz are not supported")
        if self._heard and (rate, channels) != self.form:
            raise NotTaken("the recording changes its sample rate or its channels on the way")
        self.form = (rate, channels)

    def push(self, block: PCM) -> None:
        """Take samples, (S, C)."""
        self._heard = True
        self._blocks.append(block)

    def take(self) -> PCM:
        """Return the samples since the last call, (S, C) int16."""
        taken = np.concatenate([np.empty((0, self.channels), np.int16), *self._blocks])
        self._blocks.clear()
        return taken

    def end(self) -> None:
        """Nothing is held back."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a demuxer finds in a body: its length by the packets' times, and what is missing or left out."""

    length_s: float | None
    problem: str | None


def contents_of(body: bytes) -> Contents:
    """Read a whole container without decoding it. Raises: MediaError for one that live streams cannot have."""
    finder, demuxer, times = DemuxerFinder(), None, Times()
    for piece in _pieces(body):
        if demuxer is not None:
            times.take(demuxer.feed(piece))
        elif (found := finder.feed(piece)) is not None:
            demuxer, first = found
            times.take(demuxer.feed(first))
    if demuxer is None:
        raise Undecodable("the audio ends before it has begun")
    times.take(demuxer.flush())
    return Contents(times.length_s, demuxer.problem())


class Times:
    """The first and the last time of packets."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = 0.0

    def take(self, items: Iterator[Item]) -> None:
        """Take what a demuxer yields. Raises: MediaError."""
        for item in items:
            if isinstance(item, Timed):
                time_s = item.end_s if item.start_s is None else item.start_s
                if time_s is not None:
                    self._first_s = time_s if self._first_s is None else self._first_s
                    self._last_s = time_s

    @property
    def length_s(self) -> float | None:
        """From the first to the last, None without any."""
        return None if self._first_s is None else self._last_s - self._first_s


class ContainerSource:
    """A recording in a container that live streams may have, too."""

    def __init__(self, body: bytes, stated_s: float | None) -> None:
        """Read its first samples; `stated_s` is its length by its times. Raises: BadAudio."""
        self.stated_s = stated_s
        self._pieces = _pieces(body)
        self._output = AsSent()
        self._decoder = ContainerDecoder(self._output)
        self._ended = False
        self._first: PCM | None = self._next()  # which says the form
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
        """What was mended so far, and at the end what is missing, as `kind: sentence`."""
        return self._decoder.warnings

    def read(self) -> PCM:
        """Return the next samples, (S, C) int16, none at the end. Raises: BadAudio."""
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
