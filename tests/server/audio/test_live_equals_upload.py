"""A recording gives the same samples live, in pieces of any size, and uploaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.containers.timeline import MAX_GAP_S
from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording
from server.errors import BadAudio, Undecodable
from tests.support.audio.media_files import (
    FRAGMENTS,
    container,
    decoded,
    index_first,
    muxed,
    opus_packets,
    pieces,
    sound_file,
    speech,
)

RATE = 16_000
ANY = audio_form(None, None)
FORMS = (16_000, 1), (48_000, 2), (44_100, 6)
OPUS_FORMS = (48_000, 1), (48_000, 6)
LC_24_KHZ, HE_48_KHZ = bytes.fromhex("130856e500"), bytes.fromhex("2b09880000")
"""AAC header as FFmpeg writes it, and the same with twice the rate by SBR, for which FFmpeg has no encoder."""


def of(kind: str, codec: str, rate: int, channels: int, **options: str) -> bytes:
    return container(kind, codec, speech(rate, channels), rate, options=options)


def by_libsndfile(kind: str, codec: str, rate: int, channels: int) -> bytes:
    return sound_file(kind, codec, speech(rate, channels), rate)


def twice_the_rate(body: bytes) -> bytes:
    assert LC_24_KHZ in body
    return body.replace(LC_24_KHZ, HE_48_KHZ)


def with_pauses(kind: str, pause: int) -> bytes:
    """Return Opus with gaps of `pause` packets after each second (DTX), as shown by the container's timestamps."""
    packets = opus_packets(speech(48_000))
    return muxed(kind, {i + i // 50 * pause: packet for i, packet in enumerate(packets)})


MAKERS: dict[str, tuple[Callable[..., bytes], tuple[tuple[int, int], ...]]] = {
    "wav": (partial(by_libsndfile, "WAV", "PCM_16"), FORMS),
    "wav of 8 bits": (partial(by_libsndfile, "WAV", "PCM_U8"), FORMS[:1]),
    "wav of 24 bits": (partial(by_libsndfile, "WAV", "PCM_24"), FORMS[1:2]),
    "wav of mulaw": (partial(by_libsndfile, "WAV", "ULAW"), ((8_000, 1),)),
    "rf64": (partial(of, "wav", "pcm_s16le", rf64="always"), FORMS[:2]),
    "flac": (partial(by_libsndfile, "FLAC", "PCM_16"), FORMS),
    "flac of 24 bits": (partial(by_libsndfile, "FLAC", "PCM_24"), FORMS[1:2]),
    "ogg opus": (partial(of, "ogg", "libopus"), OPUS_FORMS),
    "ogg opus by libsndfile": (partial(by_libsndfile, "OGG", "OPUS"), ((16_000, 1), (24_000, 2), (48_000, 1))),
    "ogg vorbis": (partial(by_libsndfile, "OGG", "VORBIS"), FORMS),
    "ogg flac": (partial(of, "ogg", "flac"), FORMS),
    # Not by libsndfile, whose encoder output differs each time.
    "mp3 with its length": (partial(of, "mp3", "libmp3lame"), ((8_000, 1), (48_000, 1), (44_100, 2))),
    "mp3 with tags": (partial(of, "mp3", "libmp3lame", write_id3v1="1"), FORMS[:2]),
    "mp3 of frames alone": (partial(of, "mp3", "libmp3lame", write_xing="0", id3v2_version="0"), FORMS[:2]),
    "adts": (partial(of, "adts", "aac"), FORMS),
    "webm": (partial(of, "webm", "libopus"), OPUS_FORMS),
    "webm as recorded": (partial(of, "webm", "libopus", live="1"), OPUS_FORMS),
    "matroska of aac": (partial(of, "matroska", "aac"), FORMS),
    "matroska of mp3": (partial(of, "matroska", "libmp3lame"), FORMS[:2]),
    "matroska of flac": (partial(of, "matroska", "flac"), FORMS),
    "matroska of pcm": (partial(of, "matroska", "pcm_s16le"), FORMS[:2]),
    "fragmented mp4 of aac": (partial(of, "mp4", "aac", **FRAGMENTS), FORMS),
    "fragmented mp4 of opus": (partial(of, "mp4", "libopus", **FRAGMENTS), OPUS_FORMS),
    "fragmented mp4 of flac": (partial(of, "mp4", "flac", strict="-2", **FRAGMENTS), FORMS[:2]),
    "mp4 of aac": (partial(index_first, "aac"), FORMS),
    "mp4 of mp3": (partial(index_first, "libmp3lame"), FORMS[:2]),
    "mp4 of opus": (partial(index_first, "libopus"), OPUS_FORMS[:1]),
    "mp4 of he-aac": (lambda rate, channels: twice_the_rate(index_first("aac", rate, channels)), ((24_000, 1),)),
    "fragmented mp4 of he-aac": (
        lambda rate, channels: twice_the_rate(of("mp4", "aac", rate, channels, **FRAGMENTS)),
        ((24_000, 1),),
    ),
    "matroska of he-aac": (
        lambda rate, channels: twice_the_rate(of("matroska", "aac", rate, channels)),
        ((24_000, 1),),
    ),
    "ogg opus with pauses": (lambda *_: with_pauses("ogg", 250), ((48_000, 1),)),
    "webm with pauses": (lambda *_: with_pauses("webm", 250), ((48_000, 1),)),
}
CASES = [(name, rate, channels) for name, (_, forms) in MAKERS.items() for rate, channels in forms]


@cache
def body_of(name: str, rate: int, channels: int) -> bytes:
    return MAKERS[name][0](rate, channels)


def upload_of(body: bytes) -> tuple[np.ndarray, list[str]]:
    """Return all samples, mixed as in a session, and the warnings."""
    recording, blocks = Recording(body, ANY, rate=RATE, max_s=1e5), []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.rint(np.concatenate(blocks).mean(axis=1)), recording.warnings


@cache
def uploaded(name: str, rate: int, channels: int) -> np.ndarray:
    samples, warnings = upload_of(body_of(name, rate, channels))
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


@pytest.mark.parametrize(("name", "rate", "channels"), CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_live_audio_in_any_pieces_equals_its_upload(name: str, rate: int, channels: int, data: st.DataObject) -> None:
    body = body_of(name, rate, channels)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8) | st.lists(st.integers(0, 300), max_size=40))
    assert_same(decoded(open_decoder(ANY, RATE), pieces(body, cuts)), uploaded(name, rate, channels))


@pytest.mark.parametrize(("name", "rate", "channels"), CASES)
@pytest.mark.parametrize("size", [1, 3_000, 1 << 30])
def test_live_audio_in_equal_pieces_equals_its_upload(name: str, rate: int, channels: int, size: int) -> None:
    body = body_of(name, rate, channels)
    if size == 1 and name.startswith(("wav", "rf64")):
        body = body[:30_001]  # ends inside a sample
    live = decoded(open_decoder(ANY, RATE), list(cut_small(body) if size == 1 else cut(body, size)))
    assert len(live) > 0.04 * RATE
    assert_same(live, upload_of(body)[0])


@pytest.mark.parametrize("kind", ["ogg", "webm"])
def test_a_pause_in_which_nothing_was_sent_is_silence_in_an_upload_too(kind: str) -> None:
    whole = len(uploaded("ogg opus", 48_000, 1))
    assert len(upload_of(with_pauses(kind, 250))[0]) == pytest.approx(whole + 5 * RATE, abs=0.1 * RATE)


@pytest.mark.parametrize("kind", ["ogg", "webm"])
def test_a_pause_longer_than_any_recording_has_is_refused_live_and_uploaded(kind: str) -> None:
    body = with_pauses(kind, int(MAX_GAP_S) * 50 + 500)
    with pytest.raises(Undecodable, match="jump ahead"):
        decoded(open_decoder(ANY, RATE), [body])
    with pytest.raises(BadAudio, match="jump ahead"):
        upload_of(body)


@pytest.mark.parametrize("name", ["ogg opus", "webm"])
def test_damage_repaired_live_is_repaired_and_reported_in_an_upload(name: str) -> None:
    body = body_of(name, 48_000, 1)
    at = len(body) * 2 // 3
    broken = body[:at] + b"\x55" * 700 + body[at + 700 :]
    samples, warnings = upload_of(broken)
    assert_same(decoded(open_decoder(ANY, RATE), [broken]), samples)
    assert [text.partition(":")[0] for text in warnings] == ["damaged"]


def kinds(warnings: list[str]) -> list[str]:
    return [text.partition(":")[0] for text in warnings]


def live_warnings(body: bytes, size: int = 3_000) -> list[str]:
    decoder = open_decoder(ANY, RATE)
    decoded(decoder, list(cut(body, size)))
    return decoder.warnings


WITHOUT_SIZES = ("webm as recorded", "ogg", "fragmented", "mp3 of frames alone", "adts")
"""Name prefixes of containers whose truncation between two pages, blocks or frames cannot be detected."""


def upload_kinds(body: bytes) -> list[str]:
    """Kinds of the warnings about an upload; one whose only block or page is truncated is refused with them."""
    try:
        return kinds(upload_of(body)[1])
    except BadAudio as error:
        problem, *warnings = str(error).split("; ")
        assert problem == "the recording has no audio"
        return kinds(warnings)


@pytest.mark.parametrize(("name", "rate", "channels"), CASES)
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
def test_damage_is_named_live_as_in_an_upload(name: str) -> None:
    body = body_of(name, 48_000, 1)
    at = len(body) * 2 // 3
    broken = body[:at] + b"\x55" * 700 + body[at + 700 :]
    assert live_warnings(broken) == upload_of(broken)[1]
    assert live_warnings(broken)
