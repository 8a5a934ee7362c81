"""Selects the demuxer of a container by its first bytes, after an ID3 tag if there is one."""

from __future__ import annotations

from collections.abc import Callable

from server.audio.containers import flac, mp4, mpeg, ogg, wav, webm
from server.audio.formats import container_kind
from server.audio.packets import Demuxer, NonAudioBudget
from server.errors import NotTaken, Undecodable

SNIFF_BYTES = 12  # enough to distinguish all kinds, and the whole header of an ID3 tag
_DEMUXERS: dict[str, Callable[[], Demuxer]] = {
    "wav": wav.WavDemuxer,
    "ogg": ogg.OggDemuxer,
    "flac": flac.FlacDemuxer,
    "matroska": webm.WebmDemuxer,
    "mov": mp4.Mp4Demuxer,
    "mp3": mpeg.MpegDemuxer,
    "aac": mpeg.MpegDemuxer,
}


FIRST_SEARCH_BYTES, SEARCHED_BYTES = 2**10, 2**15  # four of the largest frames
UNRECOGNIZED = (
    "unrecognized container (not WAV, Ogg, WebM, FLAC, MP3, AAC or MP4); for raw audio set encoding and sample_rate"
)


class DemuxerFinder:
    """Buffers the first bytes until the container is recognized.

    MP3 and AAC may begin inside a frame, as a radio station's stream does for who joins it (datarhei/restreamer#717).
    """

    def __init__(self) -> None:
        self._first = b""
        self._skip = 0  # bytes of a tag that are still to be skipped
        self._tag = False
        self._next_search_bytes = FIRST_SEARCH_BYTES  # buffered ones at which frames are searched again
        self._non_audio = NonAudioBudget()

    def feed(self, chunk: bytes) -> tuple[Demuxer, bytes] | None:
        """Return the demuxer and the bytes to feed it, None if more bytes are needed. Raises: NotTaken, Undecodable."""
        self._first += chunk
        while True:
            if self._skip:
                dropped = min(self._skip, len(self._first))
                self._first, self._skip = self._first[dropped:], self._skip - dropped
            if self._skip or len(self._first) < SNIFF_BYTES:
                return None
            if not self._first.startswith(mpeg.ID3):
                demuxer, at = _demuxer_of(self._first), 0
                if demuxer is None and (at := self._frame_begins()) >= 0:
                    demuxer = mpeg.MpegDemuxer()
                if demuxer is None:
                    return None
                first, self._first = self._first[at:], b""
                return demuxer, first
            self._tag = True
            self._skip = mpeg.id3_bytes(self._first)
            self._non_audio.part(self._skip)

    def _frame_begins(self) -> int:
        """Return the offset of the first whole MP3 or AAC frame, -1 if more bytes are needed. Raises: Undecodable."""
        first = self._first
        if len(first) >= self._next_search_bytes:
            self._next_search_bytes = 2 * len(first)
            if (at := mpeg.first_frame(first[:SEARCHED_BYTES])) is not None:
                return at
        if len(first) >= (FIRST_SEARCH_BYTES if first.isascii() and b"\0" not in first else SEARCHED_BYTES):
            raise Undecodable(UNRECOGNIZED)
        return -1

    def finish(self) -> None:
        """End a stream that was not recognized. Raises: Undecodable if any bytes were received."""
        if self._first or self._tag:
            raise Undecodable(UNRECOGNIZED if len(self._first) >= SNIFF_BYTES else "the audio ends inside its header")


def _demuxer_of(first: bytes) -> Demuxer | None:
    """Return the demuxer of a stream that begins with these bytes, None if it is not recognized. Raises: NotTaken."""
    kind = container_kind(first)
    if kind == "amr":
        raise NotTaken("AMR is not supported live; upload the recording, or send Ogg, WebM or MP4")
    if kind in _DEMUXERS and (kind not in ("mp3", "aac") or mpeg.frame_header(first) is not None):
        return _DEMUXERS[kind]()
    return None
