"""Streaming demuxer of Ogg with Opus, Vorbis or FLAC. Source: RFC 3533; for the codecs see `ogg_codecs`.

After lost bytes it continues with the next page whose checksum matches. Own code because libraries read from a file,
which would need a thread per live stream.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from server.audio.containers.ogg_codecs import Headers, headers_of
from server.audio.packets import ByteWindow, Demuxer, Item, NonAudioBudget, Resync, Timed, Track
from server.errors import NotTaken, Undecodable

MAGIC = b"OggS"
VERSION = b"\0"
HEAD_BYTES = 27
CONTINUED, FIRST, LAST = 1, 2, 4  # flags of a page
FULL_SEGMENT = 255  # the packet continues in the next segment
MAX_CANDIDATES = 16  # capture patterns checked for a page inside an incomplete one
NO_GRANULE = -1  # no packet ends on the page


@dataclass(frozen=True, slots=True)
class Page:
    """A page; `granule` is the end time of its last packet, in samples."""

    flags: int
    granule: int
    serial: bytes
    lengths: bytes
    body: bytes


class OggDemuxer(Demuxer):
    """Yields the packets of the first stream with audio; each further stream after it starts a new track."""

    def __init__(self) -> None:
        self._window = ByteWindow()
        self._non_audio = NonAudioBudget()
        self._resync = Resync("an Ogg page was")
        self._serial: bytes | None = None  # of the current stream
        self._headers: Headers | None = None
        self._track: Track | None = None
        self._has_audio = False  # the current stream had audio
        self._packet = bytearray()
        self._too_long = False  # the incomplete packet holds tags and was dropped
        self._lost = False  # the beginning of the incomplete packet is missing

    def feed(self, chunk: bytes) -> Iterator[Item]:
        """Yield the packets that `chunk` completes. Raises: Undecodable, NotTaken."""
        self._window.data += chunk
        while (page := self._page(at_end=False)) is not None:
            yield from self._read(page)

    def drain(self) -> Iterator[Item]:
        """Yield the packets of a last page with a wrong checksum, unless it is incomplete."""
        while (page := self._page(at_end=True)) is not None:
            yield from self._read(page)

    def flush(self) -> Iterator[Item]:
        """Yield the last packets. Raises: Undecodable if no page was found after damage."""
        yield from self.drain()
        if self._resync.searching:
            raise self._resync.error()

    def problem(self) -> str | None:
        """Return a warning if the stream ends inside a page or a packet."""
        torn = self._window.data or self._packet
        return f"truncated: the Ogg stream ends inside a {'page' if self._window.data else 'packet'}" if torn else None

    def _page(self, *, at_end: bool) -> Page | None:
        """Take the next complete page; after lost bytes, search for it. Raises: Undecodable."""
        window = self._window
        while window.data:
            if not _begins_page(window.data, 0):
                self._search()
                continue
            size = _page_bytes(window.data)
            if size is None or len(window.data) < size:
                if not (self._has_audio and self._page_within()):
                    return None
                self._search()
                continue
            if not _checksum_holds(bytes(window.data[:size])):
                # Damaged, or written with a wrong checksum: the size is right if another page follows.
                follows, has_none = _begins_page(window.data, size), not any(window.data[22:26])
                if len(window.data) < size + len(MAGIC) and not (at_end or has_none):
                    return None
                if self._resync.searching or not (follows or has_none):
                    self._search()
                    continue
            if self._resync.searching:
                self._resync.found()
                self.resyncs += 1
            return _parsed(window.take(size))
        return None

    def _page_within(self) -> bool:
        """Whether this page contains a later one, which means that its size is damaged."""
        data, at = self._window.data, 0
        for _ in range(MAX_CANDIDATES):
            at = data.find(MAGIC + VERSION, at + 1)
            size = _page_bytes(data, at) if at > 0 else None
            if size is None or at + size > len(data):
                return False
            if _checksum_holds(bytes(data[at : at + size])):
                return True
        return False

    def _search(self) -> None:
        """Drop bytes up to the next possible page. Raises: Undecodable."""
        window = self._window
        if not self._resync.searching:
            self._resync.lose(window.offset)
            self._packet.clear()
            self._lost = True
        position = window.data.find(MAGIC, 1)
        self._resync.skip(window, position if position > 0 else max(1, len(window.data) - len(MAGIC) + 1))

    def _read(self, page: Page) -> Iterator[Item]:
        self._non_audio.part(HEAD_BYTES + len(page.lengths) + len(page.body))
        if page.flags & FIRST:
            headers = headers_of(page.body)
            if headers is not None and (self._serial is None or self._has_audio):
                self._serial, self._has_audio, self._headers = page.serial, False, headers
                self._packet.clear()
                self._track = headers.first(page.body)
                if self._track is not None:
                    yield self._track
            elif headers is not None:
                self.other_tracks += 1
            return
        if self._serial is None:
            raise NotTaken("the Ogg stream has no Opus, Vorbis or FLAC audio")
        if page.serial == self._serial:
            yield from self._packets(page)

    def _packets(self, page: Page) -> Iterator[Item]:
        if not page.flags & CONTINUED:
            self._packet.clear()
            self._lost = self._too_long = False
        elif not self._packet and not self._too_long:
            self._lost = True  # until this packet ends
        at, audio = 0, []
        for length in page.lengths:
            self._packet += page.body[at : at + length]
            at += length
            self._bound()
            if length == FULL_SEGMENT:
                continue
            packet, lost = bytes(self._packet), self._lost or self._too_long
            self._packet.clear()
            self._lost = self._too_long = False
            if lost or not packet:
                continue
            assert self._headers is not None
            if not self._headers.is_header(packet):
                audio.append(packet)
            elif (track := self._headers.header(packet)) is not None:
                self._track = track
                yield track
        if audio:
            yield self._timed(tuple(audio), page)

    def _timed(self, packets: tuple[bytes, ...], page: Page) -> Timed:
        if self._track is None or self._headers is None:
            raise Undecodable("the Ogg stream has audio before its codec headers")
        self._has_audio = True
        self._non_audio.audio()
        end_s = page.granule / self._track.rate if page.granule != NO_GRANULE and self._track.rate > 0 else None
        return Timed(packets, None, end_s, bool(page.flags & LAST), samples=self._headers.samples(packets))

    def _bound(self) -> None:
        """Drop tags over the size limit (they may hold pictures). Raises: Undecodable for a longer audio packet."""
        assert self._headers is not None
        if len(self._packet) > self._headers.max_bytes or self._too_long:
            if not self._too_long and not self._headers.is_comment(self._packet) and not self._lost:
                raise Undecodable(f"an Ogg audio packet has more than {self._headers.max_bytes} bytes")
            self._too_long = True
            self._packet.clear()


def _begins_page(data: bytearray, at: int) -> bool:
    """Whether a page may begin at `at`, judged by the bytes there are."""
    return (MAGIC + VERSION).startswith(bytes(data[at : at + len(MAGIC) + 1]))


def _page_bytes(data: bytearray, at: int = 0) -> int | None:
    """Return the size of the page at `at`, None if its header is incomplete."""
    if len(data) < at + HEAD_BYTES or len(data) < at + HEAD_BYTES + data[at + 26]:
        return None
    head_bytes = HEAD_BYTES + data[at + 26]
    return head_bytes + sum(data[at + HEAD_BYTES : at + head_bytes])


def _parsed(page: bytes) -> Page:
    body = HEAD_BYTES + page[26]
    granule = int.from_bytes(page[6:14], "little", signed=True)
    return Page(page[5], granule, page[14:18], page[HEAD_BYTES:body], page[body:])


_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _checksum_holds(page: bytes) -> bool:
    """Whether the checksum matches: zlib's CRC-32 with mirrored bits, started at 0 and not inverted."""
    data = (page[:22] + bytes(4) + page[26:]).translate(_MIRRORED)
    mirrored = zlib.crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2) == int.from_bytes(page[22:26], "little")
