"""An uploaded container as live streams read it, so that a recording has the same audio, and times, on both ways.

Other readers of files leave out what timestamps say: pauses in which nothing was sent (DTX), and lost packets.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from server.audio.containers.demuxer_finder import DemuxerFinder
from server.audio.containers.live import ContainerDecoder
from server.audio.packets import Item, Timed
from server.audio.pcm import BLOCK_S, PCM
from server.errors import BadAudio, MediaError, NotTaken

KINDS = frozenset({"ogg", "matroska", "mov"})  # whose packets have times
PIECE_BYTES = 2**16


class AsSent:
    """The output of a decoder without conversion: it has the rate and the channels of the audio."""

    mixed = False

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
        """Take this form. Raises: NotTaken for another one than that of earlier samples."""
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


class ContainerSource:
    """A recording in a container that live streams may have, too."""

    def __init__(self, body: bytes, problem: str | None) -> None:
        """Read it without decoding, then its first samples; `problem` is a warning.

        Raises: MediaError for a container that live streams cannot have, BadAudio for other damage.
        """
        self.stated_s = _length_s(body)
        self._pieces = _pieces(body)
        self._output = AsSent()
        self._decoder = ContainerDecoder(self._output)
        self._problem = problem
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
        """What was missing or mended so far, as `kind: sentence`."""
        losses = self._decoder.losses
        found = [self._problem] if self._problem else []
        if losses.concealed:
            found.append(f"damaged: {losses.concealed} packets could not be decoded and were replaced")
        if losses.resyncs:
            found.append(f"damaged: bytes are missing or wrong in {losses.resyncs} places")
        return found

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


def _length_s(body: bytes) -> float | None:
    """Length by the packets' times, None where they have none. Raises: MediaError."""
    first_s = last_s = None
    for item in _items(body):
        if isinstance(item, Timed):
            time_s = item.end_s if item.start_s is None else item.start_s
            first_s = time_s if first_s is None else first_s
            last_s = time_s if time_s is not None else last_s
    return None if first_s is None or last_s is None else last_s - first_s


def _items(body: bytes) -> Iterator[Item]:
    """All that the demuxer makes of a body. Raises: MediaError."""
    finder, demuxer = DemuxerFinder(), None
    for piece in _pieces(body):
        if demuxer is not None:
            yield from demuxer.feed(piece)
        elif (found := finder.feed(piece)) is not None:
            demuxer, first = found
            yield from demuxer.feed(first)
    if demuxer is None:
        finder.finish()
    else:
        yield from demuxer.flush()


def _pieces(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), PIECE_BYTES):
        yield body[at : at + PIECE_BYTES]
