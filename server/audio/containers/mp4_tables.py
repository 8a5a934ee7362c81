"""Parser of MP4 boxes: the audio track in `moov`, and the offsets of its samples from `moov` or `moof`. Pure.

Source: ISO/IEC 14496-12 (boxes), 14496-14 and 14496-1 (`esds`), "Encapsulation of Opus in ISO Base Media File Format",
"Encapsulation of FLAC in ISO Base Media File Format".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from server.audio.containers.flac import STREAM_INFO_BYTES, stream_info_track
from server.audio.containers.ogg_codecs import OPUS_HEAD, opus_track
from server.audio.packets import PacketCodec, Track
from server.errors import NotTaken, Undecodable

HEAD_BYTES, LARGE_HEAD_BYTES = 8, 16
ENTRY_BYTES = 28  # of an audio sample entry, before its child boxes
MAX_SAMPLES = 2**17  # per table: 46 minutes of AAC at 48 kHz, 15 MB in memory; fragments have a few each
AAC_OBJECTS = (0x40, 0x66, 0x67, 0x68)  # MPEG-4, and the profiles of MPEG-2
MP3_OBJECTS = (0x69, 0x6B)
STREAM_DESCRIPTOR, DECODER_DESCRIPTOR, SETUP_DESCRIPTOR = 3, 4, 5  # tags
DECODER_SETUP_AT = 13  # after object type, buffer size and two bit rates
BASE_OFFSET, DESCRIPTION, DEFAULT_DURATION, DEFAULT_SIZE, DEFAULT_FLAGS = 1, 2, 8, 16, 32  # flags of tfhd
DATA_OFFSET, FIRST_FLAGS, DURATIONS, SIZES, FLAGS, COMPOSITIONS = 1, 4, 0x100, 0x200, 0x400, 0x800  # flags of trun

Boxes = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Sample:
    """Offset, size and start time of one packet."""

    offset: int
    size_bytes: int
    start_s: float


@dataclass(frozen=True, slots=True)
class AudioTrack:
    """The first audio track, and the defaults for its fragments."""

    number: int
    timescale: int
    track: Track
    default_duration: int
    default_size: int
    end: float  # media time at which it is cut off


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield names and bodies of the boxes that fill `data`. Raises: Undecodable."""
    at = 0
    while at + HEAD_BYTES <= len(data):
        size, name, head = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], HEAD_BYTES
        if size == 1:
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), LARGE_HEAD_BYTES
        elif size == 0:
            size = len(data) - at
        if size < head or at + size > len(data):
            raise Undecodable(f"the MP4 box {name[:4].decode('latin-1')!r} is damaged")
        yield name, data[at + head : at + size]
        at += size


def audio_track(moov: bytes) -> tuple[AudioTrack, Boxes, int]:
    """Return the first audio track, its sample tables, and the number of others. Raises: NotTaken, Undecodable."""
    extends = dict(_extends(moov))
    tracks = [dict(boxes(trak)) for name, trak in boxes(moov) if name == b"trak"]
    audio = [(fields, media) for fields in tracks if (media := _media(fields)).get(b"hdlr", b"")[8:12] == b"soun"]
    if not audio:
        raise NotTaken("the MP4 stream has no audio track")
    fields, media = audio[0]
    tables = dict(boxes(dict(boxes(media.get(b"minf", b""))).get(b"stbl", b"")))
    try:
        timescale = _timescale(media[b"mdhd"])
        number = _track_number(fields[b"tkhd"])
        track = _described(tables[b"stsd"])
        edits = _edits(dict(boxes(fields.get(b"edts", b""))).get(b"elst", b""))
        movie_timescale = _timescale(dict(boxes(moov))[b"mvhd"]) if edits else 1
    except (KeyError, IndexError, struct.error) as error:
        raise Undecodable("the MP4 header is damaged") from error
    begin, length_s = edits[0][1] if edits else 0, math.inf
    if edits and not extends:  # the edit of a fragmented file has the length of what was there when it was written
        if len(edits) > 1:
            raise NotTaken(f"MP4 cut to {len(edits)} parts (edit list) is not supported live; send one part")
        length_s = edits[0][0] / movie_timescale or math.inf
    track = replace(
        track,
        skip=max(0, begin * track.rate // timescale - round(track.delay_s * track.rate)),
        length=None if length_s == math.inf else round(length_s * track.rate),
    )
    first = AudioTrack(number, timescale, track, *extends.get(number, (0, 0)), begin + length_s * timescale)
    return first, tables, len(audio) - 1


def _media(fields: Boxes) -> Boxes:
    return dict(boxes(fields.get(b"mdia", b"")))


def _extends(moov: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield for each track number the default duration and size of its fragments' samples."""
    for name, body in boxes(dict(boxes(moov)).get(b"mvex", b"")):
        if name == b"trex" and len(body) >= 24:
            _, number, _, duration, size, _ = struct.unpack_from(">6I", body)
            yield number, (duration, size)


def _timescale(header: bytes) -> int:
    """Return the ticks a second of a media or movie header. Raises: Undecodable, IndexError, struct.error."""
    (timescale,) = struct.unpack_from(">I", header, 20 if header[0] else 12)
    if not timescale:
        raise Undecodable("the MP4 header is damaged")
    return int(timescale)


def _track_number(tkhd: bytes) -> int:
    (number,) = struct.unpack_from(">I", tkhd, 20 if tkhd[0] else 12)
    return int(number)


def _edits(elst: bytes) -> list[tuple[int, int]]:
    """Return the edits that are not empty: length in the movie's time, 0 if unknown, and start in the media's."""
    if len(elst) < 8:
        return []
    step, form = (20, ">Qq") if elst[0] else (12, ">Ii")
    edits = [struct.unpack_from(form, elst, at) for at in range(8, len(elst) - step + 1, step)]
    return [(length, start) for length, start in edits if start >= 0]


def _described(stsd: bytes) -> Track:
    """Return the track of the first sample entry. Raises: NotTaken, Undecodable, IndexError."""
    name, entry = next(iter(boxes(stsd[8:])))
    version, channels, rate = entry[9], entry[17], int.from_bytes(entry[24:26], "big")
    inner = dict(boxes(entry[ENTRY_BYTES + {1: 16}.get(version, 0) :])) if version < 2 else {}
    if name == b"mp4a" and b"esds" in inner:
        return _mp4a(inner[b"esds"], rate, channels)
    if name == b"Opus" and b"dOps" in inner:
        return opus_track(_opus_head(inner[b"dOps"]))
    if name == b"fLaC" and b"dfLa" in inner:
        info = inner[b"dfLa"][8 : 8 + STREAM_INFO_BYTES]
        if len(info) < STREAM_INFO_BYTES:
            raise Undecodable("the FLAC header is damaged")
        return stream_info_track(info)
    raise NotTaken(f"MP4 audio codec {name.decode('latin-1')!r} is not supported live; send AAC, MP3, Opus or FLAC")


def _mp4a(esds: bytes, rate: int, channels: int) -> Track:
    """Return the track of an elementary stream descriptor. Raises: NotTaken."""
    stream = _descriptor(esds, 4, STREAM_DESCRIPTOR)  # after version and flags
    decoder = _descriptor(stream, _optional_fields_end(stream), DECODER_DESCRIPTOR)
    kind = decoder[0] if decoder else 0
    setup = _descriptor(decoder, DECODER_SETUP_AT, SETUP_DESCRIPTOR)
    if kind in AAC_OBJECTS and len(setup) >= 2:
        return Track(PacketCodec.AAC, rate or 48_000, channels, setup)
    if kind in MP3_OBJECTS:
        return Track(PacketCodec.MP3, rate, channels)
    raise NotTaken(f"MP4 audio of object type {kind:#x} is not supported live; send AAC, MP3, Opus or FLAC")


def _optional_fields_end(stream: bytes) -> int:
    """Return where the fields of a stream descriptor end: number, flags, and the optional fields they announce."""
    flags = stream[2] if len(stream) > 3 else 0
    at = 3 + (2 if flags & 0x80 else 0)  # number of the stream it depends on
    if flags & 0x40:  # URL
        at += 1 + (stream[at] if at < len(stream) else 0)
    return at + (2 if flags & 0x20 else 0)  # number of the clock reference stream


def _descriptor(data: bytes, at: int, tag: int) -> bytes:
    """Return the body of the descriptor with this tag at `at`, empty if there is none."""
    if data[at : at + 1] != bytes([tag]):
        return b""
    size = 0
    for position in range(at + 1, min(at + 5, len(data))):
        size = size << 7 | data[position] & 0x7F
        if not data[position] & 0x80:
            return data[position + 1 : position + 1 + size]
    return b""


def _opus_head(box: bytes) -> bytes:
    """Return the Ogg form of the Opus header; the box has the same fields in big-endian order."""
    if len(box) < 11:
        raise Undecodable("the Opus header is damaged")
    _, channels, skip, rate, gain, family = struct.unpack_from(">BBHIhB", box)
    return OPUS_HEAD + struct.pack("<BBHIhB", 1, channels, skip, rate, gain, family) + box[11:]


def fragment(moof: bytes, offset: int, audio: AudioTrack, next_time: int) -> tuple[list[Sample], int]:
    """Return the samples of a fragment at stream offset `offset`, and their end time. Raises: Undecodable."""
    samples: list[Sample] = []
    try:
        for name, traf in boxes(moof):
            if name == b"traf":
                next_time = _run_of_track(traf, offset, audio, next_time, samples)
    except struct.error as error:
        raise Undecodable("an MP4 fragment is damaged") from error
    return samples, next_time


def _run_of_track(traf: bytes, offset: int, audio: AudioTrack, time: int, samples: list[Sample]) -> int:
    parts = list(boxes(traf))
    head = dict(parts).get(b"tfhd", b"")
    flags, number = struct.unpack_from(">II", head)
    if number != audio.number:
        return time
    at, base, duration, size = 8, offset, audio.default_duration, audio.default_size
    if flags & BASE_OFFSET:
        (base,) = struct.unpack_from(">Q", head, at)
        at += 8
    at += 4 if flags & DESCRIPTION else 0
    if flags & DEFAULT_DURATION:
        (duration,) = struct.unpack_from(">I", head, at)
        at += 4
    if flags & DEFAULT_SIZE:
        (size,) = struct.unpack_from(">I", head, at)
    sample_at = base
    for name, body in parts:
        if name == b"tfdt":
            (time,) = struct.unpack_from(">Q" if body[:1] == b"\1" else ">I", body, 4)
        elif name == b"trun":
            (run_flags,) = struct.unpack_from(">I", body)
            if run_flags & DATA_OFFSET:
                sample_at = base + struct.unpack_from(">i", body, 8)[0]
            for run_size, run_duration in _run(body, duration, size, MAX_SAMPLES - len(samples)):
                samples.append(Sample(sample_at, run_size, time / audio.timescale))
                sample_at, time = sample_at + run_size, time + run_duration
    return time


def _run(trun: bytes, default_duration: int, default_size: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield size and duration of each sample of a run. Raises: Undecodable."""
    flags, count = struct.unpack_from(">II", trun)
    at = 8 + (4 if flags & DATA_OFFSET else 0)
    at += 4 if flags & FIRST_FLAGS else 0
    fields = [flags & DURATIONS, flags & SIZES, flags & FLAGS, flags & COMPOSITIONS]
    step = 4 * sum(map(bool, fields))
    if count > most or at + count * step > len(trun):
        raise Undecodable("an MP4 fragment is damaged")
    for number in range(count):
        row = at + number * step
        duration, size = default_duration, default_size
        if flags & DURATIONS:
            duration, row = int.from_bytes(trun[row : row + 4], "big"), row + 4
        if flags & SIZES:
            size = int.from_bytes(trun[row : row + 4], "big")
        yield size, duration


def whole_file(tables: Boxes, audio: AudioTrack) -> list[Sample]:
    """Return the samples of an unfragmented file up to its cut, empty if its tables are. Raises: Undecodable."""
    sizes = _sizes(tables.get(b"stsz", b""))
    if not len(sizes):
        return []
    runs = _table(tables.get(b"stsc", b""), 3)  # (R, 3): first chunk from 1, samples per chunk, description
    chunks = _table(tables[b"stco"], 1)[:, 0] if b"stco" in tables else _large(tables.get(b"co64", b""))
    durations = _table(tables.get(b"stts", b""), 2)  # (R, 2): number of samples, duration
    if not len(runs) or not len(chunks) or durations[:, 0].sum() > MAX_SAMPLES:
        raise Undecodable("the MP4 sample tables are damaged")
    ticks = np.repeat(durations[:, 1], durations[:, 0])
    starts = np.concatenate([[0], np.cumsum(ticks)])
    samples: list[Sample] = []
    run, count = 0, len(sizes)
    for chunk, first in enumerate(chunks.tolist(), 1):
        offset = first
        while run + 1 < len(runs) and runs[run + 1, 0] <= chunk:
            run += 1
        for _ in range(min(int(runs[run, 1]), count - len(samples))):
            number = len(samples)
            start = float(starts[min(number, len(starts) - 1)])
            samples.append(Sample(offset, int(sizes[number]), start / audio.timescale))
            offset += int(sizes[number])
    played = [sample for sample in samples if sample.start_s * audio.timescale < audio.end]
    return sorted(played, key=lambda sample: sample.offset)


def _sizes(stsz: bytes) -> NDArray[np.int64]:
    if len(stsz) < 12:
        return np.empty(0, np.int64)
    _, size, count = struct.unpack_from(">III", stsz)
    if count > MAX_SAMPLES:
        raise NotTaken(f"the MP4 index has {count} samples, more than {MAX_SAMPLES}; send fragmented MP4")
    if size:
        return np.full(count, size, np.int64)
    return np.frombuffer(stsz[12 : 12 + 4 * count], ">u4").astype(np.int64)


def _table(box: bytes, columns: int) -> NDArray[np.int64]:
    """Return the rows of 32-bit numbers after version, flags and count, (R, columns) int64."""
    rows = min(int.from_bytes(box[4:8], "big"), max(0, len(box) - 8) // (4 * columns))
    return np.frombuffer(box[8 : 8 + 4 * columns * rows], ">u4").astype(np.int64).reshape(-1, columns)


def _large(co64: bytes) -> NDArray[np.int64]:
    rows = min(int.from_bytes(co64[4:8], "big"), max(0, len(co64) - 8) // 8)
    return np.frombuffer(co64[8 : 8 + 8 * rows], ">u8").astype(np.int64)
