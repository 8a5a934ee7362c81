"""Malicious containers end in a clear error soon, within the limits of decoded audio and of work."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.decode_queue import BURST_S, PIECE_BYTES, DecodeBudget
from server.audio.decoder import LiveDecoder, open_decoder
from server.audio.formats import audio_form
from server.errors import Inflated, MediaError, NotTaken, Undecodable
from tests.support.audio.media_files import (
    FRAGMENTS,
    container,
    decoded,
    flac_head,
    flac_silence,
    opus_packets,
    sound_file,
    speech,
)
from tutti_asr_lab.trials.hostile.containers import element

MESSAGE_BYTES = 2**20  # the largest message that the server accepts
SOON_S = 4.0  # processor time per message, in Python, on any machine
HEAD = b"OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0"
LONGEST = b"\xfb\x06"  # six empty Opus frames of 20 ms


def sniffed() -> LiveDecoder:
    return open_decoder(audio_form(None, None), 16_000)


def page(packets: list[bytes], flags: int = 0, serial: int = 1, lengths: bytes | None = None) -> bytes:
    lengths = lengths if lengths is not None else bytes(len(packet) for packet in packets)
    return (
        b"OggS\0" + bytes([flags]) + struct.pack("<qIIIB", 0, serial, 0, 0, len(lengths)) + lengths + b"".join(packets)
    )


def webm(codec: bytes = b"A_OPUS", kind: int = 2, *, private: bytes = HEAD, extra: bytes = b"") -> bytes:
    entry = (
        element(0xD7, b"\1") + element(0x83, bytes([kind])) + element(0x86, codec) + element(0x63A2, private) + extra
    )
    header = element(0x1A45DFA3, b"") + element(0x18538067, b"", (1 << 56) - 1)
    return header + element(0x1654AE6B, element(0xAE, entry))


def box(name: bytes, body: bytes, size: int | None = None) -> bytes:
    return struct.pack(">I", 8 + len(body) if size is None else size) + name + body


FTYP = box(b"ftyp", b"iso5")
OGG = page([HEAD], flags=2) + page([b"OpusTags" + bytes(8)])
BLOCK = element(0xA3, b"\x81\0\0\x80" + LONGEST)
BOMBS: dict[str, bytes] = {
    "ogg": OGG + page([LONGEST] * 255) * 200,
    "webm": webm() + BLOCK * 5_000,
    "flac": flac_head() + b"".join(flac_silence(n) for n in range(2_000)),
}


LIMIT_S = 20.0


@pytest.mark.parametrize("name", BOMBS)
def test_a_few_bytes_that_decode_to_hours_are_delivered_in_bounded_parts(name: str) -> None:
    """The length decoded by one call does not depend on the compression ratio."""
    decoder, parts = sniffed(), []
    parts.append(decoder.feed(BOMBS[name], LIMIT_S))
    for _ in range(5):
        assert decoder.holds
        parts.append(decoder.feed(b"", LIMIT_S))
    assert all(LIMIT_S - 0.2 <= len(part) / 16_000 <= LIMIT_S for part in parts)


@pytest.mark.parametrize("name", BOMBS)
def test_audio_beyond_an_exhausted_budget_is_refused(name: str) -> None:
    decoder = sniffed()
    decoder.feed(BOMBS[name], LIMIT_S)
    with pytest.raises(Inflated, match="decodes to far more than its size"):
        decoder.feed(b"", 0.0)


def test_a_container_decoded_in_small_parts_has_the_samples_of_the_whole() -> None:
    for name in REAL:
        decoder, blocks = sniffed(), []
        for piece in in_pieces([real(name)]):
            blocks.append(decoder.feed(piece, 0.05))
            while decoder.holds:
                blocks.append(decoder.feed(b"", 0.05))
        blocks.append(decoder.flush(0.05))
        while decoder.holds:
            blocks += [decoder.feed(b"", 0.05), decoder.flush(0.05)]
        assert max(map(len, blocks)) <= 0.05 * 16_000, name
        assert np.array_equal(np.concatenate(blocks), decoded(sniffed(), [real(name)])), name


def test_a_page_of_flac_is_decoded_frame_by_frame() -> None:
    """255 frames of four seconds with eight channels would need 267 MB at once."""
    info = flac_head(channels=8)[8:42]
    head = page([b"\x7fFLAC\1\0\0\0fLaC\0\0\0\x22" + info], 2)
    decoder = sniffed()
    frame = flac_silence(0, channels=8)
    decoder.feed(head + page([frame] * 255), LIMIT_S)
    tracemalloc.start()
    try:
        for _ in range(3):
            decoder.feed(b"", LIMIT_S)
        assert decoder.holds
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


def test_the_decode_budget_allows_encoded_silence() -> None:
    """FLAC frames of digital silence have 0.26 s in 13 bytes, 0.5 s at 8 kHz: hours of them are a normal file."""
    silent = DecodeBudget(1_000.0, 20.0)
    for _ in range(20_000):
        assert silent.limit_s(13, 1_000.0) > 0.5
        silent.spend(0.512)


def test_the_decode_budget_grows_with_bytes_and_with_time() -> None:
    bomb = DecodeBudget(1_000.0, 20.0)
    total_s = 0.0
    while (limit_s := bomb.limit_s(14, 1_000.0)) >= 4.0:
        bomb.spend(4.0)
        total_s += 4.0
        assert total_s < 2 * BURST_S
    assert limit_s < 4.0
    assert bomb.limit_s(14, 1_060.0) == 20.0  # a muted microphone sends this little for hours, in real time
    file = DecodeBudget(0.0, 20.0)
    for _ in range(10_000):  # five hours of Opus at 6 kbit/s, at once
        assert file.limit_s(1_500, 0.0) == 20.0
        file.spend(2.0)


ENDLESS: dict[str, bytes] = {
    "wav chunks": b"RIFF\0\0\0\0WAVE" + b"JUNK\0\0\0\0" * 131_000,
    "wav chunk of four gigabytes": b"RIFF\0\0\0\0WAVEJUNK\xff\xff\xff\xff",
    "ogg pages without packets": page([HEAD], flags=2) + page([]) * 38_000,
    "ogg pages of another stream": page([HEAD], flags=2) + page([b"x"], serial=2) * 30_000,
    "ogg beginnings": page([HEAD], flags=2) * 20_000,
    "ogg tags": page([HEAD], flags=2)
    + page([b"OpusTags" + bytes(247)] + [bytes(255)] * 254)
    + page([bytes(255)] * 255, 1) * 14,
    "webm voids": webm() + b"\xec\x80" * 500_000,
    "webm void of an exabyte": webm() + element(0xEC, b"", 1 << 55),
    "webm clusters": webm() + element(0x1F43B675, b"", (1 << 56) - 1) * 80_000,
    "webm blocks of another track": webm() + element(0xA3, b"\x82\0\0\0x") * 60_000,
    "webm empty blocks": webm() + element(0xA3, b"\x81\0\0\0") * 60_000,
    "ogg pages within a page": OGG + page([LONGEST]) + (page([bytes(255)] * 255)[:28] + b"\xff" * 254) * 3_000,
    "ogg beginnings of pages after lost bytes": OGG + page([LONGEST]) + b"!" + (b"OggS" + bytes(22) + b"\xff") * 38_000,
    "webm blocks after lost bytes": webm() + BLOCK + b"~" + b"\xa3\x84\x81\0\0\x06" * 170_000,
    "mp3 beginnings of frames": (b"\xff\xfb\x90\x64" + bytes(413)) * 2 + b"\xff" * 1_000_000,
    "mp4 boxes": box(b"ftyp", b"iso5") + box(b"free", b"") * 130_000,
    "mp4 index of boxes": box(b"ftyp", b"iso5") + box(b"moov", box(b"trak", b"") * 130_000) * 1,
    "flac metadata": flac_head().replace(b"\x80", b"\0", 1) + b"\1\0\0\0" * 250_000,
    "flac beginnings of frames": flac_head() + flac_silence(0) + b"\xff\xf8" * 500_000,
    "flac frame without an end": flac_head() + flac_silence(0)[:-2] + bytes(2**20 - 200),
}


def in_pieces(messages: list[bytes]) -> Iterator[bytes]:
    """Yield the messages in pieces, as the decode queue splits them."""
    for message in messages:
        for start in range(0, len(message), PIECE_BYTES):
            yield message[start : start + PIECE_BYTES]


@pytest.mark.parametrize("name", ENDLESS)
def test_a_container_without_audio_is_refused_in_bounded_time(name: str) -> None:
    """Processor time in Python for one message of the largest size."""
    data, decoder, began_s = ENDLESS[name], sniffed(), time.process_time()
    assert len(data) <= MESSAGE_BYTES
    messages = [data] + [bytes(MESSAGE_BYTES) if "byte" in name else data] * 40
    with pytest.raises((Undecodable, NotTaken)):
        decoded(decoder, in_pieces(messages), 20.0)
    assert time.process_time() - began_s < SOON_S


WRONG: dict[str, tuple[bytes, type[MediaError], str]] = {
    "text": (b"hello, is this on?", Undecodable, "encoding and sample_rate"),
    "raw samples": (speech().tobytes()[8_000:], Undecodable, "encoding and sample_rate"),
    "a tag and no mp3": (b"ID3\4\0\0\0\0\0\0" + bytes(20), Undecodable, "MP3"),
    "a tag alone": (b"ID3\4\0\0\0\0\0\0" + bytes(2), Undecodable, "ends inside its header"),
    "mp3 of one frame that breaks off": (b"\xff\xfb\x90\x64" + bytes(500), Undecodable, "not followed by another"),
    "amr": (b"#!AMR\n" + bytes(30), NotTaken, "upload"),
    "mp4 that ends before its header": (b"\0\0\0\x0cftypM4A \0\0\0\0", Undecodable, "before its header"),
    "mp4 with its index at the end": (FTYP + box(b"mdat", bytes(100)), NotTaken, "fragmented"),
    "mp4 fragment without a header": (FTYP + box(b"moof", bytes(100)), NotTaken, "header"),
    "mp4 with video alone": (FTYP + box(b"moov", b""), NotTaken, "no audio track"),
    "mp4 of a huge index": (FTYP + box(b"moov", b"", 2**30), Undecodable, "1073741824 bytes, more than"),
    "mp4 out of step": (FTYP + bytes(100), Undecodable, "byte 12"),
    "ogg theora": (page([b"\x80theora" + bytes(23)], 2) + page([b"x"]), NotTaken, "no Opus, Vorbis or FLAC"),
    "ogg vorbis without its setup": (page([b"\1vorbis" + bytes(23)], 2) + page([b"x"] * 2), Undecodable, "headers"),
    "ogg vorbis with a broken setup": (
        page([b"\1vorbis" + bytes(23)], 2) + page([b"\x05vorbis" + bytes(50)]),
        NotTaken,
        "0 channels",
    ),
    "ogg out of step": (OGG + b"Oggz" + bytes(100), Undecodable, "byte 91, and none follows"),
    "ogg with a packet too long": (
        OGG + page([bytes(255)] * 255) + page([bytes(255)] * 255, 1),
        Undecodable,
        "more than 65536 bytes",
    ),
    "ogg opus without channels": (page([b"OpusHead\1\0" + bytes(9)], 2), Undecodable, "header"),
    "ogg opus of nine channels": (page([b"OpusHead\1\x09" + bytes(9)], 2), NotTaken, "9 channels"),
    "ogg opus with a mapping that makes no sense": (
        page([b"OpusHead\1\2\0\0\x80\xbb\0\0\0\0\1\2\1\x09\x09"], 2) + page([b"OpusTags"]) + page([LONGEST]),
        Undecodable,
        "opus",
    ),
    "ogg opus packets of nothing": (
        OGG + page([b"\xff" * 100]),
        Undecodable,
        "none of the 1 packets can be decoded as opus",
    ),
    "webm with video alone": (webm(b"V_VP8", 1), NotTaken, "no audio track"),
    "webm with ac-3": (webm(b"A_AC3"), NotTaken, "A_AC3"),
    "webm that is encrypted": (webm(extra=element(0x6D80, b"\0")), NotTaken, "ContentEncodings"),
    "webm with a broken header": (webm(private=b"x" * 30), Undecodable, "Opus header"),
    "webm with tracks cut short": (
        element(0x1A45DFA3, b"") + element(0x1654AE6B, b"\xae\xff\x01"),
        Undecodable,
        "header is damaged",
    ),
    "webm of huge tracks": (
        element(0x1A45DFA3, b"") + element(0x1654AE6B, b"", 2**40),
        Undecodable,
        "WebM element expected",
    ),
    "webm with a huge block": (webm() + element(0xA3, b"", 2**30), Undecodable, "byte 24"),
    "webm without its header": (element(0x1A45DFA3, b"") + BLOCK, NotTaken, "its header"),
    "webm with laced blocks": (webm() + element(0xA3, b"\x81\0\0\x86" + LONGEST), NotTaken, "several packets"),
    "webm with a torn block": (webm() + element(0xA3, b"\x81\0"), Undecodable, "damaged"),
    "webm out of step": (webm() + bytes(100), Undecodable, "byte 24"),
    "flac of no rate": (flac_head(rate=0), NotTaken, "0 Hz"),
    "flac of 96 kHz": (flac_head(rate=96_000), NotTaken, "96000 Hz"),
    "flac without header": (b"fLaC\x84\0\0\x22" + bytes(40), Undecodable, "STREAMINFO"),
    "flac frames out of step": (flac_head() + bytes(100), Undecodable, "FLAC frame expected at byte 42"),
    "flac that changes its channels": (
        flac_head() + flac_silence(0) + b"\xff\xf8\x70\x10" + bytes(2**18 + 2_000),
        Undecodable,
        "the FLAC frame at byte 42 is damaged",
    ),
    "flac with wrong checksums": (
        flac_head() + flac_silence(0)[:-1] + b"\1" + flac_silence(1)[:-1] + b"\1" + flac_silence(2)[:-1],
        Undecodable,
        "none of the 2 packets can be decoded as flac",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_unsupported_audio_is_named_in_the_error(name: str) -> None:
    data, error, named = WRONG[name]
    with pytest.raises(error, match=named) as raised:
        decoded(sniffed(), [data])
    assert len(str(raised.value).encode()) <= 113  # with the prefix DATA-0000 it fits into a close frame


def test_empty_and_truncated_streams_end_without_error_or_by_a_named_one() -> None:
    assert len(sniffed().flush()) == 0
    with pytest.raises(Undecodable, match="ends inside its header"):
        decoded(sniffed(), [b"OggS"])
    torn = container("webm", "libopus", speech(48_000), 48_000)
    assert len(decoded(sniffed(), [torn[: len(torn) // 2]])) > 0


@pytest.mark.parametrize(
    ("packet", "named"), [(b"OggS\0\2" + bytes(40), "ogg-opus"), (bytes(70_000), "70000 bytes; send one Opus packet")]
)
def test_a_message_that_is_not_an_opus_packet_is_refused(packet: bytes, named: str) -> None:
    decoder = open_decoder(audio_form("opus", 48_000), 16_000)
    decoder.feed(opus_packets(speech(48_000))[5], 1.0)
    with pytest.raises(Undecodable, match=named):
        decoder.feed(packet, 1.0)


REAL: dict[str, Callable[[], bytes]] = {
    "webm": lambda: container("webm", "libopus", speech(48_000), 48_000, options={"live": "1"}),
    "mp3": lambda: container("mp3", "libmp3lame", speech(), 16_000),
    "adts": lambda: container("adts", "aac", speech(), 16_000),
    "mp4": lambda: container("mp4", "aac", speech(), 16_000, options=FRAGMENTS),
    "ogg flac": lambda: container("ogg", "flac", speech(), 16_000),
    "ogg vorbis": lambda: sound_file("OGG", "VORBIS", speech(), 16_000),
    "ogg": lambda: container("ogg", "libopus", speech(), 16_000),
    "flac": lambda: container("flac", "flac", speech(), 16_000),
    "wav": lambda: container("wav", "pcm_s24le", speech(), 16_000),
}


@cache
def real(name: str) -> bytes:
    return REAL[name]()


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=150)
@given(data=st.data())
def test_any_damage_ends_in_audio_or_in_a_named_error(name: str, data: st.DataObject) -> None:
    """Only MediaError is raised, and audio stays within the limit, whatever is overwritten, removed or inserted."""
    body = bytearray(real(name))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1) | st.integers(0, min(600, len(body) - 1)))
        junk = data.draw(st.binary(max_size=12) | st.binary(min_size=1, max_size=3).map(lambda b: b * 50))
        body[at : at + data.draw(st.integers(0, 40))] = junk
        body = body or bytearray(b"x")
    decoder = sniffed()
    try:
        for start in range(0, len(body), 4_096):
            assert len(decoder.feed(bytes(body[start : start + 4_096]), 20.0)) <= 20.2 * 16_000
        decoder.drain()
        tail = decoder.flush()
        assert tail.dtype == np.int16
    except MediaError:
        return
