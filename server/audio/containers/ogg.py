"""Demuxer of Opus, Vorbis and FLAC in Ogg pages, as they arrive. Source: RFC 3533; for codecs `ogg_codecs`.

Where a page does not begin as the last one ends, bytes were lost: it goes on with the next page whose checksum is
right. Own code because libraries pull from a file, which would cost a live stream a thread.
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
FULL_SEGMENT = 255  # the packet goes on in the next segment
MAX_CANDIDATES = 16  # looked at for a page within one that is not whole yet
NO_GRANULE = -1  # no packet ends on the page


@dataclass(frozen=True, slots=True)
class Page:
    """A page; `granule` is the time at its last packet's end, in samples."""

    flags: int
    granule: int
    serial: bytes
    lengths: bytes
    body: bytes


class OggDemuxer(Demuxer):
    """Yields the packets of the first stream with audio; a further one after it is a new track."""

    def __init__(self) -> None:
        self._window = ByteWindow()
        self._non_audio = NonAudioBudget()
        self._resync = Resync("an Ogg page was")
        self._serial: bytes | None = None  # of the stream that is read
        self._headers: Headers | None = None
        self._track: Track | None = None
        self._heard = False  # audio of that stream
        self._packet = bytearray()
        self._too_long = False  # the unfinished packet holds tags and was dropped
        self._lost = False  # its beginning is missing

    def feed(self, chunk: bytes) -> Iterator[Item]:
        """Yield the packets that `chunk` completes. Raises: Undecodable, NotTaken."""
        self._window.data += chunk
        while (page := self._page(at_end=False)) is not None:
            yield from self._read(page)

    def drain(self) -> Iterator[Item]:
        """Yield the packets of a last page whose checksum is wrong, unless it is torn."""
        while (page := self._page(at_end=True)) is not None:
            yield from self._read(page)

    def flush(self) -> Iterator[Item]:
        """Yield what the end completes. Raises: Undecodable for a stream that was not found again."""
        yield from self.drain()
        if self._resync.searching:
            raise self._resync.error()

    def problem(self) -> str | None:
        """A page or a packet that the stream ends within."""
        torn = self._window.data or self._packet
        return f"truncated: the Ogg stream ends inside a {'page' if self._window.data else 'packet'}" if torn else None

    def _page(self, *, at_end: bool) -> Page | None:
        """Take the next whole page; search for it where bytes were lost. Raises: Undecodable."""
        window = self._window
        while window.data:
            if not _begins_page(window.data, 0):
                self._search()
                continue
            size = _page_bytes(window.data)
            if size is None or len(window.data) < size:
                if not (self._heard and self._page_within()):
                    return None
                self._search()
                continue
            if not _checksum_holds(bytes(window.data[:size])):
                # Damaged, or computed wrongly: the next page shows whether this one's size is right.
                follows = _begins_page(window.data, size)
                if len(window.data) < size + len(MAGIC) and not (at_end or _has_no_checksum(window.data)):
                    return None
                if self._resync.searching or not (follows or _has_no_checksum(window.data)):
                    self._search()
                    continue
            if self._resync.searching:
                self._resync.found()
                self.resyncs += 1
            return _parsed(window.take(size))
        return None

    def _page_within(self) -> bool:
        """Whether a later page lies in what should be this one: then its size is damaged."""
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
        """Drop bytes up to the next that may begin a page. Raises: Undecodable."""
        window = self._window
        if not self._resync.searching:
            self._resync.lose(window.offset)
            self._packet.clear()
            self._lost = True
        found = window.data.find(MAGIC, 1)
        self._resync.skip(window, found if found > 0 else max(1, len(window.data) - len(MAGIC) + 1))

    def _read(self, page: Page) -> Iterator[Item]:
        self._non_audio.part(HEAD_BYTES + len(page.lengths) + len(page.body))
        if page.flags & FIRST:
            headers = headers_of(page.body)
            if headers is not None and (self._serial is None or self._heard):
                self._serial, self._heard, self._headers = page.serial, False, headers
                self._packet.clear()
                self._track = headers.first(page.body)
                if self._track is not None:
                    yield self._track
            return
        if self._serial is None:
            raise NotTaken("the Ogg stream holds no Opus, Vorbis or FLAC audio")
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
            raise Undecodable("the Ogg stream has audio before the headers that describe it")
        self._heard = True
        self._non_audio.audio()
        known = page.granule != NO_GRANULE and self._track.rate > 0
        end_s = page.granule / self._track.rate if known else None
        return Timed(packets, None, end_s, bool(page.flags & LAST), samples=self._headers.samples(packets))

    def _bound(self) -> None:
        """Drop tags, which hold pictures of any size. Raises: Undecodable for an audio packet of such a size."""
        assert self._headers is not None
        if len(self._packet) > self._headers.max_bytes or self._too_long:
            if not self._too_long and not self._headers.is_comment(self._packet) and not self._lost:
                raise Undecodable("an Ogg packet is too long for audio")
            self._too_long = True
            self._packet.clear()


def _begins_page(data: bytearray, at: int) -> bool:
    """Whether a page may begin there, as far as there are bytes."""
    return (MAGIC + VERSION).startswith(bytes(data[at : at + len(MAGIC) + 1]))


def _has_no_checksum(page: bytearray) -> bool:
    return not any(page[22:26])


def _page_bytes(data: bytearray, at: int = 0) -> int | None:
    """The size of the page that begins there, None if its head is not whole."""
    if len(data) < at + HEAD_BYTES or len(data) < at + HEAD_BYTES + data[at + 26]:
        return None
    head_bytes = HEAD_BYTES + data[at + 26]
    return head_bytes + sum(data[at + HEAD_BYTES : at + head_bytes])


def _parsed(page: bytes) -> Page:
    body = HEAD_BYTES + page[26]
    granule = int.from_bytes(page[6:14], "little", signed=True)
    return Page(page[5], granule, page[14:18], page[HEAD_BYTES:body], page[body:])


_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL_ONES = 0xFFFFFFFF


def _checksum_holds(page: bytes) -> bool:
    """Compare the checksum, which is that of zlib with mirrored bits, begun at 0 and not inverted."""
    data = (page[:22] + bytes(4) + page[26:]).translate(_MIRRORED)
    mirrored = zlib.crc32(data, _ALL_ONES) ^ _ALL_ONES
    return int(f"{mirrored:032b}"[::-1], 2) == int.from_bytes(page[22:26], "little")
