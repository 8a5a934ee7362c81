"""Streaming demuxer of MP4: fragmented, as browsers record it, or a file whose index (`moov`) comes first.

A box is parsed once it is complete; of `mdat` only the samples of the audio track are buffered, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator

from server.audio.containers.mp4_tables import (
    HEAD_BYTES,
    LARGE_HEAD_BYTES,
    AudioTrack,
    Sample,
    audio_track,
    fragment,
    whole_file,
)
from server.audio.packets import MAX_PACKET_BYTES, ByteWindow, Demuxer, Item, NonAudioBudget, Timed
from server.errors import Headless, NotTaken, Undecodable

MAX_INDEX_BYTES = 2**22  # enough for the `moov` of six hours of AAC, and for any `moof`
INDEX_BOXES = (b"moov", b"moof")
TO_THE_END = 2**62  # size used for a box that extends to the end of the file


class Mp4Demuxer(Demuxer):
    """Yields the samples of the first audio track; a new header from a restarted recorder starts a new track."""

    def __init__(self) -> None:
        self._window = ByteWindow()
        self._non_audio = NonAudioBudget()
        self._skip_until = 0  # stream offset of the end of the current box
        self._box_is_sized = True  # False: the box extends to the end of the stream
        self._track: AudioTrack | None = None
        self._samples: deque[Sample] = deque()  # announced, not yet received
        self._time = 0  # start of a fragment that has no time of its own
        self._file_began = 0  # stream offset that the file's offsets are relative to

    def feed(self, chunk: bytes) -> Iterator[Item]:
        """Yield the samples that `chunk` completes. Raises: Undecodable, NotTaken."""
        window = self._window
        window.data += chunk
        while window.data:
            if window.offset < self._skip_until:
                if not (yield from self._payload()):
                    return
                continue
            head = _box_head(window)
            if head is None:
                return
            name, head_bytes, size = head
            if name in INDEX_BOXES:
                if size > MAX_INDEX_BYTES:
                    raise Undecodable(
                        f"the MP4 box at byte {window.offset} has {size} bytes, more than {MAX_INDEX_BYTES}"
                    )
                if len(window.data) < size:
                    return
                yield from self._index(name, window.offset, window.take(size)[head_bytes:])
            else:
                if name == b"mdat" and self._track is None:
                    raise NotTaken(
                        "MP4 with its index (moov) after the audio is not supported live; send fragmented MP4"
                    )
                if name == b"ftyp":
                    self._file_began = window.offset
                self._non_audio.part(head_bytes if name == b"mdat" else size)
                self._skip_until, self._box_is_sized = window.offset + size, size < TO_THE_END
                window.drop(head_bytes)

    def flush(self) -> Iterator[Item]:
        """Yield nothing: no samples are held back. Raises: Undecodable if the stream had no header."""
        if self._track is None and (self._window.data or self._window.offset):
            raise Undecodable("the MP4 stream ends before its header (moov)")
        return iter(())

    def problem(self) -> str | None:
        """Return a warning if the stream ends inside a box, or before samples that its index announces."""
        window = self._window
        if window.data or (window.offset < self._skip_until and self._box_is_sized):
            return "truncated: the MP4 stream ends inside a box"
        missing = len(self._samples)
        return f"truncated: the last {missing} packets that the MP4 index announces are missing" if missing else None

    def _index(self, name: bytes, offset: int, body: bytes) -> Iterator[Item]:
        self._non_audio.part(len(body))
        if name == b"moov":
            self._track, tables, self.other_tracks = audio_track(body)
            self._samples = deque(self._placed(whole_file(tables, self._track)))
            self._time = 0
            yield self._track.track
        elif self._track is None:
            raise Headless("the MP4 stream does not begin with its header (moov); send it from its beginning")
        else:
            samples, self._time = fragment(body, offset - self._file_began, self._track, self._time)
            self._samples = deque(self._placed(samples))

    def _placed(self, samples: list[Sample]) -> Iterator[Sample]:
        """Yield the samples with their stream offsets, without those before the current position."""
        for sample in samples:
            offset = sample.offset + self._file_began
            if sample.size_bytes > MAX_PACKET_BYTES:
                raise Undecodable(
                    f"the MP4 index has a sample of {sample.size_bytes} bytes, more than {MAX_PACKET_BYTES}"
                )
            if offset >= self._window.offset:
                yield Sample(offset, sample.size_bytes, sample.start_s)

    def _payload(self) -> Generator[Item, None, bool]:
        """Read the payload of a box that is not an index; return False if more bytes are needed."""
        window, samples = self._window, self._samples
        while samples and samples[0].offset < window.offset:
            samples.popleft()  # overlaps another sample: a forged table
        if samples and samples[0].offset < self._skip_until:
            sample = samples[0]
            if sample.offset + sample.size_bytes > self._skip_until:
                raise Undecodable(f"the MP4 sample at byte {sample.offset} extends past the end of its box")
            self._drop(min(sample.offset - window.offset, len(window.data)))
            if window.offset < sample.offset or len(window.data) < sample.size_bytes:
                return False
            samples.popleft()
            packet = window.take(sample.size_bytes)
            if packet:
                self._non_audio.audio()
                yield Timed((packet,), start_s=sample.start_s)
            return True
        self._drop(min(self._skip_until - window.offset, len(window.data)))
        return window.offset >= self._skip_until

    def _drop(self, size_bytes: int) -> None:
        if size_bytes:
            self._non_audio.part(size_bytes)
            self._window.drop(size_bytes)


def _box_head(window: ByteWindow) -> tuple[bytes, int, int] | None:
    """Return name, header size and total size of a box; None if the header is incomplete. Raises: Undecodable."""
    data = window.data
    if len(data) < HEAD_BYTES:
        return None
    size, name = int.from_bytes(data[:4], "big"), bytes(data[4:8])
    if not all(32 <= byte < 127 or byte == 0xA9 for byte in name):
        raise Undecodable(f"MP4 box expected at byte {window.offset}: damaged or lost bytes")
    if size == 1:
        if len(data) < LARGE_HEAD_BYTES:
            return None
        size, head = int.from_bytes(data[8:16], "big"), LARGE_HEAD_BYTES
    else:
        head = HEAD_BYTES
        size = size or TO_THE_END
    if size < head:
        raise Undecodable(f"the MP4 box at byte {window.offset} has an invalid size: {size}")
    return name, head, size
