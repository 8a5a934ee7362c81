"""One table of recordings in every format, and what holds for each: live in any pieces, uploaded, cut off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.containers.timeline import MAX_GAP_S
from server.audio.decoder import open_decoder
from server.audio.formats import audio_form, container_kind
from server.audio.recordings.ffmpeg_container import AvSource
from server.errors import BadAudio, Undecodable
from tests.support.audio.media_files import (
    ANY,
    FRAGMENTS,
    PLAIN_MP3,
    by_ffmpeg,
    by_libsndfile,
    decoded,
    index_first,
    likeness,
    mixed,
    muxed,
    opus_packets,
    pieces,
    speech,
    streamed,
    uploaded,
)

RATE = 16_000
FORMS = (16_000, 1), (48_000, 2), (44_100, 6)
OPUS_FORMS = (48_000, 1), (48_000, 6)
LC_24_KHZ, HE_48_KHZ = bytes.fromhex("130856e500"), bytes.fromhex("2b09880000")
"""AAC header as FFmpeg writes it, and the same with twice the rate by SBR, for which FFmpeg has no encoder."""


def he_aac(make: Callable[[int, int], bytes], rate: int, channels: int) -> bytes:
    body = make(rate, channels)
    assert LC_24_KHZ in body
    return body.replace(LC_24_KHZ, HE_48_KHZ)


def with_pauses(kind: str, pause: int = 250) -> bytes:
    """Return Opus with gaps of `pause` packets after each second (DTX), as shown by the container's timestamps."""
    packets = opus_packets(speech(48_000))
    return muxed(kind, {i + i // 50 * pause: packet for i, packet in enumerate(packets)})


MAKERS: dict[str, tuple[Callable[..., bytes], tuple[tuple[int, int], ...]]] = {
    "wav": (partial(by_libsndfile, "WAV", "PCM_16"), FORMS),
    "wav of 8 bits": (partial(by_libsndfile, "WAV", "PCM_U8"), FORMS[:1]),
    "wav of 24 bits": (partial(by_libsndfile, "WAV", "PCM_24"), FORMS[1:2]),
    "wav of mulaw": (partial(by_libsndfile, "WAV", "ULAW"), ((8_000, 1),)),
    "rf64": (partial(by_ffmpeg, "wav", "pcm_s16le", rf64="always"), FORMS[:2]),
    "flac": (partial(by_libsndfile, "FLAC", "PCM_16"), FORMS),
    "flac of 24 bits": (partial(by_libsndfile, "FLAC", "PCM_24"), FORMS[1:2]),
    "ogg opus": (partial(by_ffmpeg, "ogg", "libopus"), OPUS_FORMS),
    "ogg opus by libsndfile": (partial(by_libsndfile, "OGG", "OPUS"), ((16_000, 1), (24_000, 2), (48_000, 1))),
    "ogg vorbis": (partial(by_libsndfile, "OGG", "VORBIS"), FORMS),
    "ogg flac": (partial(by_ffmpeg, "ogg", "flac"), FORMS),
    "mp3 with its length": (partial(by_ffmpeg, "mp3", "libmp3lame"), ((8_000, 1), (48_000, 1), (44_100, 2))),
    "mp3 with tags": (partial(by_ffmpeg, "mp3", "libmp3lame", write_id3v1="1"), FORMS[:2]),
    "mp3 of frames alone": (partial(by_ffmpeg, "mp3", "libmp3lame", **PLAIN_MP3), FORMS[:2]),
    "adts": (partial(by_ffmpeg, "adts", "aac"), FORMS),
    "webm": (partial(by_ffmpeg, "webm", "libopus"), OPUS_FORMS),
    "webm as recorded": (partial(by_ffmpeg, "webm", "libopus", live="1"), OPUS_FORMS),
    "matroska of aac": (partial(by_ffmpeg, "matroska", "aac"), FORMS),
    "matroska of mp3": (partial(by_ffmpeg, "matroska", "libmp3lame"), FORMS[:2]),
    "matroska of flac": (partial(by_ffmpeg, "matroska", "flac"), FORMS),
    "matroska of pcm": (partial(by_ffmpeg, "matroska", "pcm_s16le"), FORMS[:2]),
    "fragmented mp4 of aac": (partial(by_ffmpeg, "mp4", "aac", **FRAGMENTS), FORMS),
    "fragmented mp4 with offsets of the file": (
        partial(by_ffmpeg, "mp4", "aac", movflags="frag_keyframe+empty_moov", frag_duration="200000"),
        FORMS[:1],
    ),
    "fragmented mp4 of opus": (partial(by_ffmpeg, "mp4", "libopus", **FRAGMENTS), OPUS_FORMS),
    "fragmented mp4 of flac": (partial(by_ffmpeg, "mp4", "flac", strict="-2", **FRAGMENTS), FORMS[:2]),
    "fragmented mp4 of mp3": (partial(by_ffmpeg, "mp4", "libmp3lame", **FRAGMENTS), FORMS[:1]),
    "mp4 of aac": (partial(index_first, "aac"), FORMS),
    "mp4 of mp3": (partial(index_first, "libmp3lame"), FORMS[:2]),
    "mp4 of opus": (partial(index_first, "libopus"), OPUS_FORMS[:1]),
    "mp4 of he-aac": (partial(he_aac, partial(index_first, "aac")), ((24_000, 1),)),
    "fragmented mp4 of he-aac": (partial(he_aac, partial(by_ffmpeg, "mp4", "aac", **FRAGMENTS)), ((24_000, 1),)),
    "matroska of he-aac": (partial(he_aac, partial(by_ffmpeg, "matroska", "aac")), ((24_000, 1),)),
    "ogg opus with pauses": (lambda *_: with_pauses("ogg"), ((48_000, 1),)),
    "webm with pauses": (lambda *_: with_pauses("webm"), ((48_000, 1),)),
}
CASES = [(name, rate, channels) for name, (_, forms) in MAKERS.items() for rate, channels in forms]
FIRST = [(name, *forms[0]) for name, (_, forms) in MAKERS.items()]
cases = pytest.mark.parametrize(("name", "rate", "channels"), CASES)
firsts = pytest.mark.parametrize(("name", "rate", "channels"), FIRST)


@cache
def body_of(name: str, rate: int, channels: int) -> bytes:
    return MAKERS[name][0](rate, channels)


@cache
def upload_of(name: str, rate: int, channels: int) -> np.ndarray:
    samples, warnings = mixed(body_of(name, rate, channels))
    assert warnings == []
    return samples


def assert_same(live: np.ndarray, upload: np.ndarray) -> None:
    """Check that samples differ only by rounding, due to mixing channels before or after resampling."""
    assert len(live) == len(upload)
    assert np.abs(live[:, 0] - upload).max() <= 3


def cut(body: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


def cut_small(body: bytes) -> Iterator[bytes]:
    """Yield headers, first frames and the end byte by byte, and what is between in pieces smaller than a frame."""
    first, last = body[:8_000], body[8_000:][-2_000:]
    yield from cut(first, 1)
    yield from cut(body[len(first) : len(body) - len(last)], 97)
    yield from cut(last, 1)


@cases
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_live_audio_in_any_pieces_equals_its_upload(name: str, rate: int, channels: int, data: st.DataObject) -> None:
    body = body_of(name, rate, channels)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8) | st.lists(st.integers(0, 300), max_size=40))
    assert_same(streamed(pieces(body, cuts)), upload_of(name, rate, channels))


@cases
@pytest.mark.parametrize("size", [1, 3_000])
def test_live_audio_in_equal_pieces_equals_its_upload(name: str, rate: int, channels: int, size: int) -> None:
    body = body_of(name, rate, channels)
    if size == 1 and name.startswith(("wav", "rf64")):
        body = body[:30_001]  # ends inside a sample
    live = streamed(list(cut_small(body) if size == 1 else cut(body, size)))
    assert len(live) > 0.04 * RATE
    assert_same(live, mixed(body)[0])


@cases
def test_the_samples_are_those_of_the_original_and_of_ffmpeg(name: str, rate: int, channels: int) -> None:
    """FFmpeg reads the whole file: it ignores pauses, and trims some AAC, Opus and Vorbis at another place."""
    if "pauses" in name or "he-aac" in name:
        return
    upload, original = upload_of(name, rate, channels), soxr.resample(speech(rate, channels).mean(axis=1), rate, RATE)
    score, shift = likeness(upload, original, 3_000)
    assert score > 0.95
    assert -16 <= shift < 0.15 * RATE
    body = body_of(name, rate, channels)
    source, blocks = AvSource(body, container_kind(body) or ""), []
    while len(block := source.read()):
        blocks.append(block)
    expected = np.concatenate(blocks)
    samples = decoded(open_decoder(audio_form(None, None, channels), source.rate, multichannel=True), [body])
    assert abs(len(samples) - len(expected)) < 0.1 * source.rate
    if samples.shape == expected.shape and "by libsndfile" not in name:
        assert np.abs(samples.astype(int) - expected).max() <= 1  # FFmpeg dithers Opus at another stage


@pytest.mark.parametrize("name", ["mp4 of he-aac", "matroska of he-aac"])
def test_the_lead_of_aac_is_dropped_at_the_rate_that_sbr_gives(name: str) -> None:
    """The container counts it at half of that rate; the decoder of SBR is late by another 20 ms."""
    score, shift = likeness(upload_of(name, 24_000, 1), soxr.resample(speech(24_000)[:, 0] * 1.0, 24_000, RATE), 3_000)
    assert score > 0.95
    assert shift == pytest.approx(0.02 * RATE, abs=8)


def test_the_samples_of_a_second_file_are_found_by_the_offsets_of_its_own_index() -> None:
    body = index_first("aac", 44_100, 1)
    both, alone = streamed([body, body]), streamed([body])
    assert len(both) == 2 * len(alone)
    assert np.array_equal(both[len(alone) :], alone)


@firsts
def test_a_drain_returns_all_audio_received_and_the_stream_continues(name: str, rate: int, channels: int) -> None:
    """As needed for `Finalize`: the filter delay and the last complete frame. Half of the bytes hold half the audio."""
    body, decoder = body_of(name, rate, channels), open_decoder(ANY, RATE)
    assert not decoder.inline
    whole = streamed([body])
    assert_same(np.concatenate([decoder.feed(body, 1e9), decoder.drain()]), whole[:, 0])
    assert not len(decoder.drain())
    assert not len(decoder.flush())
    early, half = open_decoder(ANY, RATE), len(body) // 2
    parts = [early.feed(body[:half], 1e9), early.drain(), early.feed(body[half:], 1e9)]
    assert len(np.concatenate(parts[:2])) > 0.5 * len(whole) - 1.1 * RATE  # a page of Ogg may have a second
    assert abs(len(np.concatenate([*parts, early.flush()])) - len(whole)) <= 1  # the filter's end is rounded


def kinds(warnings: list[str]) -> list[str]:
    return [text.partition(":")[0] for text in warnings]


def live_warnings(body: bytes) -> list[str]:
    decoder = open_decoder(ANY, RATE)
    decoded(decoder, list(cut(body, 3_000)))
    return decoder.warnings


WITHOUT_SIZES = ("webm as recorded", "ogg", "fragmented", "mp3 of frames alone", "adts")
"""Name prefixes of containers whose truncation between two pages, blocks or frames cannot be detected."""


def upload_kinds(body: bytes) -> list[str]:
    """Kinds of the warnings about an upload; one whose only block or page is truncated is refused with them."""
    try:
        return kinds(uploaded(body)[1])
    except BadAudio as error:
        problem, *warnings = str(error).split("; ")
        assert problem == "the recording has no audio"
        return kinds(warnings)


@cases
def test_only_a_truncated_stream_gives_a_warning_live_and_uploaded(name: str, rate: int, channels: int) -> None:
    body = body_of(name, rate, channels)
    assert live_warnings(body) == []
    for part in (2 / 3, 0.9):
        torn = body[: int(len(body) * part)]
        assert kinds(live_warnings(torn)) == ["truncated"]
        assert upload_kinds(torn) == ["truncated"]
    for missing in (1, 7, 300):
        warnings = live_warnings(body[:-missing])
        assert kinds(warnings) == upload_kinds(body[:-missing])
        assert kinds(warnings) == ["truncated"] or name.startswith(WITHOUT_SIZES)


@pytest.mark.parametrize("name", ["ogg opus", "webm"])
def test_damage_is_repaired_and_reported_live_as_in_an_upload(name: str) -> None:
    body = body_of(name, 48_000, 1)
    at = len(body) * 2 // 3
    broken = body[:at] + b"\x55" * 700 + body[at + 700 :]
    samples, warnings = mixed(broken)
    assert_same(streamed([broken]), samples)
    assert live_warnings(broken) == warnings
    assert kinds(warnings) == ["damaged"]


@pytest.mark.parametrize("kind", ["ogg", "webm"])
def test_a_pause_is_silence_and_one_longer_than_any_recording_has_is_refused(kind: str) -> None:
    whole = len(upload_of("ogg opus", 48_000, 1))
    assert len(mixed(with_pauses(kind))[0]) == pytest.approx(whole + 5 * RATE, abs=0.1 * RATE)
    body = with_pauses(kind, int(MAX_GAP_S) * 50 + 500)
    with pytest.raises(Undecodable, match="jump ahead"):
        streamed([body])
    with pytest.raises(BadAudio, match="jump ahead"):
        uploaded(body)


# Streams of other makers

CHROMIUM = (  # first three messages of its MediaRecorder: silence, and a block split between identifier and body
    (
        "1a45dfa39f4286810142f7810142f2810442f381084282847765626d42878104428581021853806701ffffffffffffff1549a966992ad7b1"
        "830f42404d80864368726f6d655741864368726f6d651654ae6bbfaebdd7810173c5878ede26342002088381028686415f4f50555363a293"
        "4f707573486561640101000080bb0000000000e18db584473b80009f8101626481201f43b67501ffffffffffffffe78100a38c81000080fb"
        "03fffefffefffea3"
    ),
    "8c81003c80fb03fffefffefffe1f43b67501ffffffffffffffe78178a38c81000080fb03fffefffefffea3",
    "8c81003c80fb03fffefffefffe1f43b67501ffffffffffffffe781f0a38c81000080fb03fffefffefffea3",
)


def test_browser_recordings_are_decoded_from_their_first_message_on() -> None:
    decoder = open_decoder(ANY, RATE)
    sizes = [len(decoder.feed(bytes.fromhex(message), 1.0)) for message in CHROMIUM]
    assert all(0 < size / RATE < 0.13 for size in sizes)
    assert sum(sizes) + len(decoder.flush()) == 5 * 0.06 * RATE


@pytest.mark.parametrize(("channels", "frame_ms"), [(1, 20), (2, 20), (1, 10), (1, 60)])
def test_raw_opus_packets_are_messages(channels: int, frame_ms: int) -> None:
    pcm = speech(48_000, channels)
    decoder = open_decoder(audio_form("opus", 48_000, channels), RATE)
    assert (decoder.rate, decoder.channels, decoder.inline) == (48_000, channels, True)
    samples = decoded(decoder, opus_packets(pcm, frame_ms=frame_ms))
    assert samples.shape[1] == channels
    for i in range(channels):
        assert likeness(samples[:, i], pcm[:, i])[0] > 0.99


NO_IMPORTS = """
import sys
import server.serve
from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording

before = set(sys.modules)
recording = sys.stdin.buffer.read()
decoder = open_decoder(audio_form(None, None), 16_000)
assert len(decoder.feed(recording, 60.0)) + len(decoder.flush()) > 16_000
assert Recording(recording, audio_form(None, None), rate=16_000, max_s=60.0).channels
open_decoder(audio_form("opus", 48_000), 16_000)
assert set(sys.modules) == before, set(sys.modules) - before
"""


def test_no_stream_waits_for_an_import() -> None:
    body = body_of("webm", 48_000, 1)
    subprocess.run([sys.executable, "-c", NO_IMPORTS], input=body, check=True, timeout=60)
