"""Uploaded containers, read by the demuxers of live streams, so that both give the same audio and the same times.

FFmpeg ignores gaps in the timestamps: pauses in which nothing was sent (DTX), and lost packets.
"""

from __future__ import annotations

from collections.abc import Iterator

from server.audio.containers.demuxer_finder import DemuxerFinder
from server.audio.containers.live import ContainerDecoder, UnconvertedParts
from server.audio.packets import Item, Timed, Track
from server.audio.pcm import BLOCK_S, PCM
from server.errors import BadAudio, MediaError, Undecodable

PIECE_BYTES = 2**16
MAX_RECORDINGS = 1_000  # of one body: opening one takes up to a millisecond, even if it is only a header


def next_part(part: int) -> int:
    """Return the index of the next recording in a body. Raises: BadAudio if there are too many."""
    if part + 1 >= MAX_RECORDINGS:
        raise BadAudio(f"more than {MAX_RECORDINGS} recordings in one body; send them separately")
    return part + 1


def length_of(body: bytes) -> float | None:
    """Return the seconds of a container by its header or timestamps, None if it has none, without decoding it.

    Raises: MediaError if the live demuxers cannot read it to its end; BadAudio if it has too many recordings.
    """
    finder, demuxer, times = DemuxerFinder(), None, _Times()
    for piece in _pieces(body):
        if demuxer is not None:
            times.take(demuxer.feed(piece))
        elif (recognized := finder.feed(piece)) is not None:
            demuxer, first = recognized
            times.take(demuxer.feed(first))
    if demuxer is None:
        raise Undecodable("the audio ends inside its header")
    times.take(demuxer.flush())
    return demuxer.announced_s or times.length_s


class _Times:
    """Timestamps of the first and the last packet."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = 0.0
        self._part = -1

    def take(self, items: Iterator[Item]) -> None:
        """Record the timestamps of a demuxer's items. Raises: MediaError, BadAudio."""
        for item in items:
            if isinstance(item, Timed):
                time_s = item.end_s if item.start_s is None else item.start_s
                if time_s is not None:
                    self._first_s = time_s if self._first_s is None else self._first_s
                    self._last_s = time_s
            elif isinstance(item, Track):
                self._part = next_part(self._part)

    @property
    def length_s(self) -> float | None:
        """Seconds from the first timestamp to the last, None if there were none."""
        return None if self._first_s is None else self._last_s - self._first_s


class ContainerSource:
    """One or several recordings in containers that the live demuxers read."""

    def __init__(self, body: bytes, stated_s: float | None) -> None:
        """Decode the first samples; `stated_s` is the length by `length_of`. Raises: BadAudio."""
        self.stated_s = stated_s
        self._pieces = _pieces(body)
        self._output = UnconvertedParts()
        self._decoder = ContainerDecoder(self._output)
        self._ended = False
        self._first: PCM | None = self._next()  # sets rate, channels and part
        if not self.rate:
            raise BadAudio("; ".join(["the recording has no audio", *self.warnings]))

    @property
    def rate(self) -> int:
        """Sample rate in Hz of the samples read last."""
        return self._output.rate

    @property
    def channels(self) -> int:
        """Number of channels of the samples read last."""
        return self._output.channels

    @property
    def part(self) -> int:
        """Index of the recording read last."""
        return self._output.part

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
