"""Demuxer of Opus in Ogg pages, as they arrive. Source: RFC 3533 and RFC 7845.

The checksums of pages are not verified: TCP has its own. Own code because libraries pull from a file, which would cost
a live stream a thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from server.audio.formats import OPUS_RATE
from server.audio.packets import MAX_PACKET_BYTES, Demuxer, NonAudioBudget, PacketCodec, Track
from server.errors import NotTaken, Undecodable

MAGIC = b"OggS"
HEAD_BYTES = 27
CONTINUED, FIRST = 1, 2  # flags of a page
OPUS_HEAD, OPUS_TAGS = b"OpusHead", b"OpusTags"
OPUS_HEAD_BYTES = 19
FULL_SEGMENT = 255  # the packet goes on in the next segment


class OggDemuxer(Demuxer):
    """Yields the packets of the first Opus stream; a further one after its end is a new track."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._non_audio = NonAudioBudget()
        self._serial: bytes | None = None  # of the stream that is read
        self._heard = False  # audio of that stream
        self._packet = bytearray()
        self._too_long = False  # the unfinished packet holds tags and was dropped
        self._lost = False  # its beginning is missing

    def feed(self, chunk: bytes) -> Iterator[Track | bytes]:
        """Yield the packets that `chunk` completes. Raises: Undecodable, NotTaken."""
        self._buffer += chunk
        while (page := self._page()) is not None:
            yield from self._read(*page)

    def _page(self) -> tuple[int, bytes, bytes, bytes] | None:
        """Take flags, serial number, segment lengths and body of the next whole page."""
        buffer = self._buffer
        if not buffer.startswith(MAGIC[: len(buffer)]) or (len(buffer) > len(MAGIC) and buffer[4]):
            raise Undecodable("an Ogg page does not begin where the last one ends")
        if len(buffer) < HEAD_BYTES or len(buffer) < HEAD_BYTES + buffer[26]:
            return None
        body = HEAD_BYTES + buffer[26]
        lengths = bytes(buffer[HEAD_BYTES:body])
        end = body + sum(lengths)
        if len(buffer) < end:
            return None
        page = buffer[5], bytes(buffer[14:18]), lengths, bytes(buffer[body:end])
        del buffer[:end]
        return page

    def _read(self, flags: int, serial: bytes, lengths: bytes, body: bytes) -> Iterator[Track | bytes]:
        self._non_audio.part(HEAD_BYTES + len(lengths) + len(body))
        if flags & FIRST:
            if body.startswith(OPUS_HEAD) and (self._serial is None or self._heard):
                self._serial, self._heard = serial, False
                self._packet.clear()
                yield opus_track(body)
            return
        if self._serial is None:
            raise NotTaken("the Ogg stream holds no Opus audio")
        if serial == self._serial:
            yield from self._packets(flags, lengths, body)

    def _packets(self, flags: int, lengths: bytes, body: bytes) -> Iterator[bytes]:
        if not flags & CONTINUED:
            self._packet.clear()
            self._lost = False
        elif not self._packet and not self._too_long:
            self._lost = True  # until this packet ends
        at = 0
        for length in lengths:
            self._packet += body[at : at + length]
            at += length
            self._bound()
            if length == FULL_SEGMENT:
                continue
            packet, lost = bytes(self._packet), self._lost or self._too_long
            self._packet.clear()
            self._lost = self._too_long = False
            if not lost and packet and not packet.startswith(OPUS_TAGS):
                self._heard = True
                self._non_audio.audio()
                yield packet

    def _bound(self) -> None:
        """Drop tags, which hold pictures of any size. Raises: Undecodable for an audio packet of such a size."""
        if len(self._packet) > MAX_PACKET_BYTES or self._too_long:
            if not self._too_long and not self._packet.startswith(OPUS_TAGS):
                raise Undecodable("a packet is too long for Opus")
            self._too_long = True
            self._packet.clear()


def opus_track(head: bytes) -> Track:
    """Return the track that an identification header describes. Raises: Undecodable."""
    if len(head) < OPUS_HEAD_BYTES or not head.startswith(OPUS_HEAD) or not head[9]:
        raise Undecodable("the Opus header is damaged")
    return Track(PacketCodec.OPUS, OPUS_RATE, head[9], head)
