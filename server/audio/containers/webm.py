"""Streaming demuxer of WebM and Matroska. Source: RFC 8794 (EBML) and RFC 9559 (Matroska).

Segments and clusters are entered without tracking their size: identifiers differ at every level, and live recorders
leave the sizes open. An element that is not in the standard means lost bytes: reading resumes at the next cluster,
header, or block that is followed by another. Own code because libraries read from a file, which would need a thread
per live stream.
"""

from __future__ import annotations

from collections.abc import Iterator

from server.audio.containers.webm_elements import (
    MAX_SIZE_BYTES,
    TRACKS,
    BadElement,
    element_head,
    elements,
    entries_of_audio,
    sint,
    track_of,
    uint,
    vint,
)
from server.audio.packets import (
    MAX_PACKET_BYTES,
    MAX_SETUP_BYTES,
    ByteWindow,
    Demuxer,
    Item,
    NonAudioBudget,
    PacketCodec,
    Resync,
    Timed,
)
from server.errors import Headless, NotTaken, Undecodable

MAGIC = b"\x1a\x45\xdf\xa3"
EBML, SEGMENT, INFO, CLUSTER, BLOCK_GROUP = 0x1A45DFA3, 0x18538067, 0x1549A966, 0x1F43B675, 0xA0
SIMPLE_BLOCK, BLOCK, TIMESTAMP, TIMESTAMP_SCALE = 0xA3, 0xA1, 0xE7, 0x2AD7B1
DISCARD_PADDING = 0x75A2
HOLDERS = frozenset({SEGMENT, CLUSTER})
MAX_BLOCK_BYTES = 2**20
WANTED = {  # element: largest size buffered in memory
    TRACKS: MAX_SETUP_BYTES,
    INFO: MAX_SETUP_BYTES,
    TIMESTAMP: 8,
    SIMPLE_BLOCK: MAX_BLOCK_BYTES,
    BLOCK_GROUP: MAX_BLOCK_BYTES,
}
LARGE, SMALL = 2**62, 16
UNWANTED = {  # element: largest size in an undamaged stream
    EBML: MAX_SETUP_BYTES,
    0x114D9B74: MAX_SETUP_BYTES,  # SeekHead
    0x1C53BB6B: LARGE,  # Cues
    0x1043A770: LARGE,  # Chapters
    0x1941A469: LARGE,  # Attachments
    0x1254C367: LARGE,  # Tags
    0xEC: LARGE,  # Void
    0xBF: SMALL,  # CRC-32
    0xA7: SMALL,  # Position
    0xAB: SMALL,  # PrevSize
    0x5854: MAX_SETUP_BYTES,  # SilentTracks
}
RESUMING = tuple(name.to_bytes(4, "big") for name in (EBML, CLUSTER))
VOID, MAX_VOID_BYTES = 0xEC, 2**12  # between blocks; its one-byte identifier may appear in damaged data
LACING, INVALID_BITS = 0x06, 0x70  # flags of a block
DEFAULT_SCALE_NS = 1_000_000


class WebmDemuxer(Demuxer):
    """Yields the packets of the first audio track; a new header from a restarted recorder starts a new track."""

    def __init__(self) -> None:
        self._window = ByteWindow()
        self._skip = 0  # bytes of an unused element that are still to be skipped
        self._non_audio = NonAudioBudget()
        self._resync = Resync("a WebM element was")
        self._number: int | None = None  # of the audio track
        self._max_packet_bytes = MAX_PACKET_BYTES
        self._segment_end = 0  # stream offset, 0 if unknown
        self._scale_ns = DEFAULT_SCALE_NS  # unit of timestamps
        self._cluster_time = 0
        self._has_audio = False  # from then on unreadable bytes are damage, not another format
        self._next_scan = 0  # buffered bytes at which an incomplete element is searched for others

    def feed(self, chunk: bytes) -> Iterator[Item]:
        """Yield the packets that `chunk` completes. Raises: Undecodable, NotTaken."""
        self._window.data += chunk
        while self._window.data:
            found = self._next()
            if found is False:
                return
            if found is not True:
                self._next_scan = 0
                yield from self._element(*found)

    def _next(self) -> tuple[int, bytes] | bool:
        """Return the next element with its body, True if bytes were skipped instead, False if more bytes are needed."""
        window = self._window
        if self._skip:
            dropped = min(self._skip, len(window.data))
            window.drop(dropped)
            self._skip -= dropped
            return True
        if self._resync.searching and not self._found():
            return False
        try:
            head = element_head(window.data, 0)
        except BadElement:
            return self._lose()
        if head is None:
            return False
        return self._take(*head)

    def _take(self, element: int, start: int, size: int | None) -> tuple[int, bytes] | bool:
        """As `_next`, for an element whose body begins at `start`."""
        window = self._window
        if element in HOLDERS:
            self._non_audio.part(start)
            window.drop(start)
            if element == SEGMENT:
                self._segment_end = 0 if size is None else window.offset + size
            return True
        if size is None or size > self._most_bytes(element):
            return self._lose()
        if element in UNWANTED:
            self._non_audio.part(start + size)
            window.drop(start)
            self._skip = size
            return True
        if len(window.data) < start + size:
            return self._damaged_size() and self._lose()
        if not self._element_may_begin(start + size):
            return self._lose()
        window.drop(start)
        return element, window.take(size)

    def flush(self) -> Iterator[Item]:
        """Yield the elements inside one whose damaged size extends past the end of the stream.

        Raises: Undecodable if no element was found after damage.
        """
        self._next_scan = 0
        yield from self.feed(b"")
        if self._resync.searching:
            raise self._resync.error()

    def problem(self) -> str | None:
        """Return a warning if the stream ends inside an element, or before the end of a segment of known size."""
        if self._window.data or self._skip:
            return "truncated: the WebM stream ends inside an element"
        missing = self._segment_end - self._window.offset
        return f"truncated: {missing} bytes are missing at the end of the WebM stream" if missing > 0 else None

    def _most_bytes(self, element: int) -> int:
        """Return the size above which an element counts as damaged, -1 for one that is not in the standard."""
        if element == VOID and self._has_audio:
            return MAX_VOID_BYTES
        return WANTED.get(element, UNWANTED.get(element, -1))

    def _damaged_size(self) -> bool:
        """Whether an incomplete element contains others; checked again when the buffer has doubled."""
        if not self._has_audio or len(self._window.data) < self._next_scan:
            return False
        self._next_scan = 2 * len(self._window.data)
        return self._resumable_at() is not None

    def _element_may_begin(self, at: int) -> bool:
        """Whether an element may begin at `at`, judged by the bytes there are; if not, the one before lost bytes."""
        try:
            head = element_head(self._window.data, at)
        except BadElement:
            return False
        if head is None or head[0] in HOLDERS:
            return True
        return head[2] is not None and head[2] <= self._most_bytes(head[0])

    def _lose(self) -> bool:
        """Start searching after damage. Raises: Undecodable before the header: then the stream is not WebM."""
        self._resync.lose(self._window.offset)
        if self._number is None:
            raise Undecodable(f"WebM element expected at byte {self._window.offset}: damaged data or another format")
        self._resync.skip(self._window, 1)
        return True

    def _found(self) -> bool:
        """Drop bytes up to the next element at which reading can resume; return whether there is one."""
        place = self._resumable_at(0)
        if place is None:
            # Keep bytes that may become a block or an identifier with more data; MAX_SEARCHED_BYTES is the limit.
            self._resync.skip(self._window, max(0, len(self._window.data) - MAX_SEARCHED_BYTES))
            return False
        self._resync.skip(self._window, place)
        self._resync.found()
        self.resyncs += 1
        return True

    def _resumable_at(self, start: int = 1) -> int | None:
        """Return the first offset from `start` on at which reading can resume, None if there is none."""
        data = self._window.data
        places = [at for name in RESUMING if (at := data.find(name, start)) >= 0]
        block = self._block_chain(start, min(places, default=len(data)))
        return min(places, default=None) if block is None else block

    def _block_chain(self, start: int, end: int) -> int | None:
        """Return the offset between `start` and `end` of a block of the track followed by another one or a cluster."""
        data = self._window.data
        at = start - 1
        while 0 <= (at := data.find(bytes([SIMPLE_BLOCK]), at + 1)) < end:
            following = self._after_block(at)
            if following is not None and (data.startswith(RESUMING, following) or self._after_block(following)):
                return at
        return None

    def _after_block(self, at: int) -> int | None:
        """Return the end of the simple block at `at`; None if it is incomplete or not a block of the track."""
        data = self._window.data
        if at >= len(data) or data[at] != SIMPLE_BLOCK:
            return None
        try:
            head = element_head(data, at)
            number = None if head is None else vint(data, head[1], MAX_SIZE_BYTES, marker=False)
        except BadElement:
            return None
        if head is None or number is None or head[2] is None or not 4 < head[2] <= MAX_PACKET_BYTES:
            return None
        end = head[1] + head[2]
        flags_at = number[1] + 2
        if number[0] != self._number or end > len(data) or data[flags_at] & (LACING | INVALID_BITS):
            return None
        return end

    def _element(self, element: int, body: bytes) -> Iterator[Item]:
        if element == TRACKS:
            self._non_audio.part(len(body))
            entries = entries_of_audio(body)
            self.other_tracks = len(entries) - 1
            self._number, track = track_of(entries[0])
            self._max_packet_bytes = MAX_PACKET_BYTES if track.codec is PacketCodec.OPUS else MAX_BLOCK_BYTES
            self._cluster_time = 0
            yield track
        elif element == INFO:
            self._non_audio.part(len(body))
            scale_ns = next((uint(value) for name, value in elements(body) if name == TIMESTAMP_SCALE), 0)
            self._scale_ns = scale_ns or DEFAULT_SCALE_NS
        elif element == TIMESTAMP:
            self._non_audio.part(len(body))
            self._cluster_time = uint(body)
        elif element == BLOCK_GROUP:
            try:
                fields = dict(elements(body))
            except Undecodable:
                self._resync.lose(self._window.offset - len(body))
                return
            discard_ns = max(0, sint(fields.get(DISCARD_PADDING, b"")))
            yield from self._block(fields.get(BLOCK, b""), discard_ns / 1e9)
        else:
            yield from self._block(body, 0.0)

    def _block(self, body: bytes, discard_s: float) -> Iterator[Timed]:
        if self._number is None:
            raise Headless("the WebM stream does not begin with its header (Tracks); send it from its beginning")
        try:
            number = vint(body, 0, MAX_SIZE_BYTES, marker=False)
        except BadElement:
            number = None
        start = 0 if number is None else number[1] + 3  # two bytes of time, one of flags
        flags = body[start - 1] if number is not None and len(body) >= start else INVALID_BITS
        is_damaged = flags & INVALID_BITS or len(body) - start > self._max_packet_bytes
        if self._has_audio and (is_damaged or flags & LACING):
            self._resync.lose(self._window.offset - len(body))
            return
        if number is None or is_damaged:
            raise Undecodable(
                f"the WebM block that ends at byte {self._window.offset} is damaged, "
                f"or larger than {self._max_packet_bytes} bytes"
            )
        if number[0] != self._number or len(body) == start:
            self._non_audio.part(len(body))
            return
        if flags & LACING:
            raise NotTaken("WebM with several packets per block (lacing) is not supported in live streams")
        self._has_audio = True
        self._non_audio.audio()
        time = self._cluster_time + sint(body[number[1] : start - 1])
        yield Timed((body[start:],), start_s=time * self._scale_ns / 1e9, discard_s=discard_s)


MAX_SEARCHED_BYTES = 2**12  # kept while searching: two blocks of the largest Opus packets that recorders write
