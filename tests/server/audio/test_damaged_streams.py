"""Damage in a live stream: packets are concealed, demuxers resynchronize, and times follow the container's."""

from __future__ import annotations

import itertools
import struct
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.containers.timeline import MAX_GAP_S
from server.audio.containers.webm import MAX_SEARCHED_BYTES
from server.audio.decoder import open_decoder
from server.audio.ffmpeg_codec import MAX_DAMAGED
from server.audio.formats import audio_form
from server.audio.packets import MAX_LOST_BYTES
from server.errors import Inflated, Undecodable
from tests.support.audio.media_files import (
    PLAIN_MP3,
    container,
    decoded,
    likeness,
    opus_packets,
    pieces,
    speech,
    uploaded,
)
from tutti_asr_lab.trials.hostile.containers import element

RATE = 48_000
PACKET = RATE // 50  # samples
NO_OPUS = b"\xff" * 100


def raw():
    return open_decoder(audio_form("opus", RATE), 16_000)


def sniffed():
    return open_decoder(audio_form(None, None), RATE)


@cache
def packets() -> tuple[bytes, ...]:
    """Return packets of 20 ms, two seconds in total."""
    return tuple(opus_packets(speech(RATE)))


@pytest.mark.parametrize("damaged", [NO_OPUS, b"", b"\x03\x30", b"\xfb\x3f"])
@pytest.mark.parametrize("at", [0, 1, 40])
def test_a_damaged_raw_opus_packet_is_concealed_and_counted(damaged: bytes, at: int) -> None:
    whole, decoder = decoded(raw(), packets()), raw()
    blocks = [decoder.feed(damaged if i == at else packet, 1.0) for i, packet in enumerate(packets())]
    samples = np.concatenate(blocks)
    assert decoder.losses.concealed == 1
    assert len(samples) == len(whole)
    assert likeness(samples[:, 0], whole[:, 0])[0] > 0.95


def test_concealed_speech_fades_without_a_gap() -> None:
    decoder = raw()
    loud = max(range(1, len(packets())), key=lambda i: len(packets()[i]))
    for packet in packets()[: loud + 1]:
        decoder.feed(packet, 1.0)
    levels = [np.abs(decoder.feed(NO_OPUS, 1.0)).mean() for _ in range(10)]
    assert levels[0] > 20 * max(1.0, levels[-1])


def test_a_raw_stream_ends_only_after_many_damaged_packets_in_a_row() -> None:
    decoder = raw()
    for _ in range(3):
        decoder.feed(packets()[5], 1.0)
        for _ in range(MAX_DAMAGED):
            assert len(decoder.feed(NO_OPUS, 1.0)) == PACKET
    assert decoder.losses.concealed == 3 * MAX_DAMAGED
    with pytest.raises(Undecodable, match=f"{MAX_DAMAGED + 1} packets in a row cannot be decoded as opus"):
        decoder.feed(NO_OPUS, 1.0)


@pytest.mark.parametrize("frame_ms", [10, 40, 60])
def test_a_concealed_packet_is_as_long_as_the_last_one(frame_ms: int) -> None:
    decoder = raw()
    decoder.feed(opus_packets(speech(RATE), frame_ms=frame_ms)[3], 1.0)
    assert len(decoder.feed(NO_OPUS, 1.0)) == RATE * frame_ms // 1_000


# Containers


def ogg_page(packets: list[bytes], granule: int, number: int, flags: int = 0) -> bytes:
    """Return a page with a correct checksum."""
    lengths = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
    head = b"OggS\0" + bytes([flags]) + struct.pack("<qII", granule, 7, number)
    body = bytes([len(lengths)]) + lengths + b"".join(packets)
    return head + struct.pack("<I", ogg_crc(head + bytes(4) + body)) + body


def ogg_crc(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ 0x04C11DB7 if crc & 0x80000000 else crc << 1) & 0xFFFFFFFF
    return crc


HEAD = b"OpusHead\x01\x01\x38\x01\x80\xbb\0\0\0\0\0"
PRE_SKIP = 0x138


@cache
def ogg_parts() -> tuple[bytes, ...]:
    """Return two header pages, then pages of five packets."""
    pages = [ogg_page([HEAD], 0, 0, 2), ogg_page([b"OpusTags" + bytes(8)], 0, 1)]
    for i in range(0, 100, 5):
        pages.append(ogg_page(list(packets()[i : i + 5]), (i + 5) * PACKET, len(pages)))
    return tuple(pages)


@pytest.mark.parametrize("cut", [0, 500, PACKET + 1])
def test_the_last_page_of_ogg_says_where_the_audio_ends(cut: int) -> None:
    """Also where it is the only page, whose audio begins at 0."""
    for first in (95, 0):
        before = ogg_parts()[: 2 + first // 5]
        last = ogg_page(list(packets()[first : first + 5]), (first + 5) * PACKET - cut, len(before), 4)
        assert len(decoded(sniffed(), [*before, last])) == (first + 5) * PACKET - cut - PRE_SKIP


@pytest.mark.parametrize("granule", [lambda end: 0, lambda end: -1, lambda end: 960, lambda end: end // 3])
@pytest.mark.parametrize("count", [5, 100])
def test_a_last_page_is_whole_if_its_writer_does_not_count_as_the_format_does(granule, count: int) -> None:
    pages = list(ogg_parts()[:2])
    for end in range(5, count + 5, 5):
        pages.append(ogg_page(list(packets()[end - 5 : end]), granule(end * PACKET), len(pages), 4 * (end == count)))
    assert len(decoded(sniffed(), pages)) == len(uploaded(b"".join(pages), rate=RATE)[0]) == count * PACKET - PRE_SKIP


def cluster(time_ms: int) -> bytes:
    return element(0x1F43B675, b"", (1 << 56) - 1) + element(0xE7, struct.pack(">I", time_ms))


def block(packet: bytes, relative_ms: int) -> bytes:
    return element(0xA3, b"\x81" + struct.pack(">h", relative_ms) + b"\x80" + packet)


@cache
def webm_head() -> bytes:
    entry = element(0xD7, b"\1") + element(0x83, b"\2") + element(0x86, b"A_OPUS") + element(0x63A2, HEAD)
    header = element(0x1A45DFA3, b"") + element(0x18538067, b"", (1 << 56) - 1)
    return header + element(0x1654AE6B, element(0xAE, entry))


@cache
def webm_parts() -> tuple[bytes, ...]:
    """Return the header, then clusters of five blocks."""
    fives = (b"".join(block(packets()[i + j], j * 20) for j in range(5)) for i in range(0, 100, 5))
    return (webm_head(), *(cluster(i * 100) + five for i, five in enumerate(fives)))


PARTS = {"ogg": ogg_parts, "webm": webm_parts}
HEADERS = {"ogg": 2, "webm": 1}


def test_page_checksums_match_ffmpeg() -> None:
    body = container("ogg", "libopus", speech(), 16_000)
    end = body.index(b"OggS", 1)
    assert ogg_crc(body[:22] + bytes(4) + body[26:end]) == int.from_bytes(body[22:26], "little")


@pytest.mark.parametrize("name", PARTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_wherever_bytes_are_lost_the_rest_is_decoded_at_its_time(name: str, data: st.DataObject) -> None:
    parts = PARTS[name]()
    header = sum(
        map(len, parts[: HEADERS[name] + 1])
    )  # including the first audio, whose time is the start of the stream
    body = b"".join(parts)
    at = data.draw(st.integers(header, len(body) // 2))
    body = body[:at] + body[at + data.draw(st.integers(1, 600)) :]
    decoder = sniffed()
    samples = decoded(decoder, [body[i : i + 999] for i in range(0, len(body), 999)])
    whole = decoded(sniffed(), list(parts))
    assert abs(len(samples) - len(whole)) <= 3 * PACKET
    late = len(whole) // 2 + 5 * PACKET
    score, shift = likeness(samples[late:, 0], whole[late:, 0], 4_000)
    assert score > 0.9
    assert abs(shift) <= 2 * PACKET


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("junk", [b'{"type":"CloseStream"}', b'{"type":"KeepAlive"}', bytes(1_000), b"\xa3" * 500])
def test_inserted_bytes_do_not_hide_the_rest(name: str, junk: bytes) -> None:
    parts = list(PARTS[name]())
    whole = decoded(sniffed(), parts)
    decoder = sniffed()
    samples = decoded(decoder, [*parts[:8], junk, *parts[8:]])
    assert decoder.losses.resyncs == 1
    assert np.array_equal(samples, whole)


@pytest.mark.parametrize("name", PARTS)
def test_a_stream_that_never_resynchronizes_ends_with_the_offset(name: str) -> None:
    parts = list(PARTS[name]()[:8])
    size = sum(map(len, parts))
    with pytest.raises(Undecodable, match=rf"at byte {size}\b"):
        decoded(sniffed(), [*parts, b"~" * 1_000])
    decoder = sniffed()
    decoder.feed(b"".join(parts), 1e9)
    with pytest.raises(Undecodable, match=rf"at byte {size}\b"):  # it is raised before the end
        decoder.feed(b"~" * (MAX_LOST_BYTES + MAX_SEARCHED_BYTES + 1), 1e9)


@pytest.mark.parametrize("name", PARTS)
def test_a_damaged_packet_in_a_container_is_concealed(name: str) -> None:
    whole = decoded(sniffed(), list(PARTS[name]()))
    if name == "ogg":
        parts = [*ogg_parts()[:2], ogg_page([*packets()[:4], NO_OPUS], 5 * PACKET, 2), *ogg_parts()[3:]]
    else:
        parts = [webm_head(), cluster(0)]
        parts += [block(NO_OPUS if i == 50 else packet, i * 20) for i, packet in enumerate(packets())]
    decoder = sniffed()
    samples = decoded(decoder, parts)
    assert decoder.losses.concealed == 1
    assert len(samples) == len(whole)


# Time


def with_gaps(name: str, gaps: dict[int, int]) -> list[bytes]:
    """Return the stream with gaps of these numbers of packets before these packets; a page or cluster per packet."""
    parts, at = list(PARTS[name]()[: HEADERS[name]]), 0
    for i, packet in enumerate(packets()):
        at += gaps.get(i, 0)
        if name == "ogg":
            parts.append(ogg_page([packet], (at + 1) * PACKET, len(parts)))
        else:
            parts.append(cluster(at * 20) + block(packet, 0))
        at += 1
    return parts


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("gaps", [{50: 3}, {20: 19, 40: 19, 60: 19}, {50: 500}, {99: 5}])
def test_a_gap_is_silence_of_that_length(name: str, gaps: dict[int, int]) -> None:
    whole = decoded(sniffed(), with_gaps(name, {}))
    samples = decoded(sniffed(), with_gaps(name, gaps))
    expected, at = [], 0
    for i, gap in gaps.items():
        place = i * PACKET - PRE_SKIP
        expected += [whole[at:place], np.zeros((gap * PACKET, 1), np.int16)]
        at = place
    expected = np.concatenate([*expected, whole[at:]])
    assert len(samples) == len(expected)
    assert np.array_equal(samples, expected)


@pytest.mark.parametrize("name", PARTS)
def test_lost_packets_become_silence_of_the_same_length(name: str) -> None:
    parts = with_gaps(name, {})
    del parts[30:60]
    samples, whole = decoded(sniffed(), parts), decoded(sniffed(), with_gaps(name, {}))
    assert len(samples) == len(whole)
    assert np.array_equal(samples[-10 * PACKET :], whole[-10 * PACKET :])


@pytest.mark.parametrize("name", PARTS)
def test_a_stream_whose_timestamps_start_late_begins_with_its_audio(name: str) -> None:
    """The timestamps of a recorder or a radio station do not start at 0."""
    assert np.array_equal(decoded(sniffed(), with_gaps(name, {0: 50_000})), decoded(sniffed(), with_gaps(name, {})))


@pytest.mark.parametrize("name", PARTS)
def test_a_forged_timestamp_gives_no_hours_of_silence(name: str) -> None:
    with pytest.raises(Undecodable, match="timestamps jump ahead by 3600 s"):
        decoded(sniffed(), with_gaps(name, {50: 180_000}))
    long = int(MAX_GAP_S * 50) - 1
    decoder = sniffed()
    for part in with_gaps(name, {50: long})[: HEADERS[name] + 51]:
        decoder.feed(part, 20.0)
    assert decoder.holds
    with pytest.raises(Inflated, match="gaps between timestamps add up to far more than the time elapsed"):
        decoder.feed(b"", 0.0)


@pytest.mark.parametrize("name", PARTS)
def test_a_gap_longer_than_a_piece_is_delivered_in_pieces(name: str) -> None:
    gaps = {50: 3_000}
    decoder, blocks = sniffed(), []
    for part in with_gaps(name, gaps):
        blocks.append(decoder.feed(part, 20.0))
        while decoder.holds:
            blocks.append(decoder.feed(b"", 20.0))
    blocks.append(decoder.flush())
    assert max(map(len, blocks)) <= 20 * RATE
    assert np.array_equal(np.concatenate(blocks), decoded(sniffed(), with_gaps(name, gaps)))


@pytest.mark.parametrize("name", PARTS)
def test_timestamps_that_step_back_drop_nothing(name: str) -> None:
    samples = decoded(sniffed(), with_gaps(name, {50: -40}))
    assert np.array_equal(samples, decoded(sniffed(), with_gaps(name, {})))


def test_jitter_of_a_recorders_clock_makes_no_gaps() -> None:
    jitter = itertools.cycle((0, 12, -9, 25, 3))
    blocks = [cluster(i * 20 + next(jitter) + 100) + block(packet, 0) for i, packet in enumerate(packets())]
    assert np.array_equal(decoded(sniffed(), [webm_head(), *blocks]), decoded(sniffed(), with_gaps("webm", {})))


@pytest.mark.parametrize(
    ("at", "junk", "after"),
    [(3_603, b'{"type":"KeepAlive"}', 3_920), (6_283, b"", 6_285), (6_283, b'{"type":"KeepAlive"}', 6_284)],
)
def test_a_frame_that_seems_to_have_45_channels_or_7_kb_costs_no_other(at: int, junk: bytes, after: int) -> None:
    body = container("adts", "aac", speech(), 16_000)
    parts = [body[:at], junk, body[after:]]
    decoder, whole = (open_decoder(audio_form(None, None), 16_000) for _ in range(2))
    assert 0.85 < len(decoded(decoder, parts)) / len(decoded(whole, [body])) <= 1
    assert decoder.losses.concealed or decoder.losses.resyncs


@pytest.mark.parametrize("kind", ["mp3", "adts"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_reading_resumes_at_the_next_frame(kind: str, data: st.DataObject) -> None:
    body = container(kind, {"mp3": "libmp3lame", "adts": "aac"}[kind], speech(), 16_000)
    at = data.draw(st.integers(len(body) // 4, len(body) // 2))
    junk = data.draw(st.sampled_from([b"", b'{"type":"KeepAlive"}', b"\xff" * 50, bytes(5_000)]))
    decoder = open_decoder(audio_form(None, None), 16_000)
    samples = decoded(decoder, [body[:at], junk, body[at + data.draw(st.integers(1, 400)) :]])
    whole = decoded(open_decoder(audio_form(None, None), 16_000), [body])
    assert len(whole) * 0.85 < len(samples) <= len(whole)
    late = len(whole) * 3 // 4
    assert likeness(samples[-len(whole) + late :, 0], whole[late:, 0], 4_000)[0] > 0.8


@pytest.mark.parametrize("kind", ["mp3", "adts"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_station_that_is_joined_inside_a_frame_is_decoded(kind: str, data: st.DataObject) -> None:
    """As a client gets it that passes on what a radio station sends; some files have zeros before their first frame."""
    body = container(kind, {"mp3": "libmp3lame", "adts": "aac"}[kind], speech(), 16_000, options=PLAIN_MP3)
    at, zeros = data.draw(st.integers(0, len(body) // 4)), data.draw(st.sampled_from([0, 1, 5_000]))
    joined = bytes(zeros) + body[at:]
    samples = decoded(
        open_decoder(audio_form(None, None), 16_000), pieces(joined, data.draw(st.lists(st.integers(0, 9_000))))
    )
    whole = decoded(open_decoder(audio_form(None, None), 16_000), [body])
    assert len(whole) * 0.65 < len(samples) <= len(whole)
    late = len(whole) * 3 // 4
    assert likeness(samples[-len(whole) + late :, 0], whole[late:, 0])[0] > 0.99
    assert len(uploaded(joined)[0]) == len(samples)


@pytest.mark.parametrize(
    "body", [b"\0" + b"\xff\xfb\x90\x64" * 20_000, bytes(40_000), b"\xff" * 40_000, speech().tobytes()]
)
def test_the_search_for_a_frame_is_bounded(body: bytes) -> None:
    with pytest.raises(Undecodable, match="unrecognized container"):
        decoded(open_decoder(audio_form(None, None), 16_000), [body[:2_000], body[2_000:40_000]])
    decoder = open_decoder(audio_form(None, None), 16_000)
    assert not len(decoder.feed(bytes(1) + body[:1_000], 1.0))
    with pytest.raises(Undecodable, match="unrecognized container"):
        decoder.flush()
