"""Audio formats: encodings in queries, containers detected from an upload's bytes, and losses of a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from server.errors import BadParameter

OPUS_RATE = 48_000  # of all decoded Opus. Source: RFC 7845, section 5.1
MAX_OPUS_CHANNELS = 2  # of a raw packet: more need the channel mapping of a container


class Encoding(StrEnum):
    """Encodings of a client's audio; the values are used on the wire and as metric labels."""

    LINEAR16 = "linear16"
    LINEAR32 = "linear32"  # float
    MULAW = "mulaw"
    ALAW = "alaw"
    OPUS = "opus"  # one packet per message, without a container
    OGG_OPUS = "ogg-opus"
    FLAC = "flac"
    CONTAINER = "container"  # never on the wire: no encoding was given


PLAIN = frozenset({Encoding.LINEAR16, Encoding.LINEAR32, Encoding.MULAW, Encoding.ALAW})
RAW = PLAIN | {Encoding.OPUS}  # without a header: the query describes the audio
_NAMED = {encoding.value: encoding for encoding in Encoding if encoding is not Encoding.CONTAINER}


@dataclass(frozen=True, slots=True)
class AudioForm:
    """Format of a client's audio by its query. `sample_rate` is None if the audio's header has it."""

    encoding: Encoding
    sample_rate: int | None
    channels: int = 1

    @property
    def raw(self) -> bool:
        """True if the audio has no header."""
        return self.encoding in RAW

    def decoded_rate(self, model_rate: int) -> int:
        """Return the output rate in Hz of a live decoder: the model's for containers."""
        if self.encoding is Encoding.OPUS:
            return OPUS_RATE
        return model_rate if self.sample_rate is None else self.sample_rate

    def decoded_channels(self, *, multichannel: bool) -> int:
        """Return the output channels of a live decoder: containers are mixed down unless `multichannel` is set."""
        return self.channels if self.raw or multichannel else 1


def audio_form(encoding: str | None, sample_rate: int | None, channels: int = 1) -> AudioForm:
    """Return the form for the three parameters; the caller checks their ranges. Raises: BadParameter."""
    if encoding is None:
        return AudioForm(Encoding.CONTAINER, None, channels)
    known = _NAMED.get(encoding)
    if known is None:
        raise BadParameter(f"encoding: {encoding[:64]!r} is not supported; send one of {', '.join(_NAMED)}")
    if known not in RAW:
        return AudioForm(known, None, channels)
    if sample_rate is None:
        raise BadParameter(f"sample_rate: required with encoding={known.value}")
    if known is Encoding.OPUS and channels > MAX_OPUS_CHANNELS:
        raise BadParameter(f"channels: a raw Opus packet carries at most {MAX_OPUS_CHANNELS}; send ogg-opus for more")
    return AudioForm(known, sample_rate, channels)


@dataclass(slots=True)
class Losses:
    """What a stream lost: packets concealed, places where bytes were missing, and further audio tracks."""

    concealed: int = 0
    resyncs: int = 0
    other_tracks: int = 0  # with audio, after the one that is decoded

    def warnings(self) -> list[str]:
        """Return the losses as `kind: sentence`."""
        remarks = []
        if self.concealed:
            remarks.append(f"damaged: {self.concealed} packets could not be decoded and were concealed")
        if self.resyncs:
            remarks.append(f"damaged: bytes are missing or wrong in {self.resyncs} places")
        if self.other_tracks:
            remarks.append(
                f"skipped: the first of {self.other_tracks + 1} audio tracks is recognized, the others are not"
            )
        return remarks


SUFFIXES = (
    *("wav", "flac", "ogg", "oga", "opus", "mp3", "webm", "mka", "mkv", "m4a", "mp4"),
    *("mov", "aac", "3gp", "amr", "aif", "aiff", "w64", "rf64", "caf", "au", "voc", "sph"),
    *("mpga", "weba", "m4b", "qta", "aifc"),
)  # of files with recordings
MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1a\x45\xdf\xa3", "matroska"),  # webm too
    *((4, box, "mov") for box in (b"ftyp", b"styp", b"moof", b"moov", b"mdat", b"wide", b"free", b"skip")),  # mp4, m4a
    (0, b"\x1f\x43\xb6\x75", "matroska"),  # without its header
    (0, b"OggS", "ogg"),
    (0, b"fLaC", "flac"),
    *((0, magic, "wav") for magic in (b"RIFF", b"RF64", b"BW64", b"RIFX")),  # RIFX: big-endian
    (0, b"FORM", "aiff"),
    (0, b"riff\x2e\x91\xcf\x11", "w64"),
    (0, b"caff\0\1\0\0", "caf"),
    (0, b".snd\0\0\0", "au"),
    (0, b"NIST_1A", "nistsphere"),
    (0, b"Creative Voice File", "voc"),
    (0, b"#!AMR", "amr"),
    (0, b"ID3", "mp3"),
)


def container_kind(body: bytes) -> str | None:
    """Return FFmpeg's name of the container with these first bytes, None if it is not supported."""
    for at, magic, kind in MAGICS:
        if body[at : at + len(magic)] == magic:
            return kind
    if len(body) < 2 or body[0] != 0xFF:
        return None
    if body[1] & 0xF6 == 0xF0:
        return "aac"  # ADTS: layer 0
    return "mp3" if body[1] & 0xE0 == 0xE0 else None
