"""Recordings are recognized by their first bytes: each of several in a row, and under another announced encoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form, container_kind
from server.audio.sniffing import container_of
from server.errors import BadAudio, NotTaken, Undecodable
from tests.support.audio.media_files import (
    ANY,
    FRAGMENTS,
    PLAIN_MP3,
    by_ffmpeg,
    by_libsndfile,
    decoded,
    mixed,
    pieces,
    sound_file,
    speech,
    streamed,
    uploaded,
)

RATE = 16_000
TAGGED = b"TAG" + bytes(125) + b"APETAGEX" + b"\xd0\7\0\0" + (40).to_bytes(4, "little")
TAGGED += b"\0\0\0\0" + b"\0\0\0\xa0" + bytes(8) + bytes(40)
PICTURE = b"ID3\4\0\0" + bytes(200_000 >> shift & 0x7F for shift in (21, 14, 7, 0)) + bytes(200_000)
mp3, plain_mp3 = partial(by_ffmpeg, "mp3", "libmp3lame"), partial(by_ffmpeg, "mp3", "libmp3lame", **PLAIN_MP3)
opus, flac, vorbis = (
    partial(by_ffmpeg, "ogg", "libopus"),
    partial(by_libsndfile, "FLAC", "PCM_16"),
    partial(by_libsndfile, "OGG", "VORBIS"),
)
CHAINS: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "wav": lambda: (by_libsndfile("WAV", "PCM_16", 16_000, 1), by_libsndfile("WAV", "PCM_24", 48_000, 2)),
    "ogg opus": lambda: (opus(16_000, 1), opus(48_000, 1), opus(48_000, 2)),
    "ogg of three codecs": lambda: (
        opus(16_000, 1),
        vorbis(16_000, 1),
        vorbis(44_100, 2),
        by_ffmpeg("ogg", "flac", 48_000, 2),
    ),
    "flac": lambda: (flac(16_000, 1), flac(16_000, 1), flac(44_100, 2), by_ffmpeg("flac", "flac", 16_000, 1)),
    "flac, first of one frame": lambda: (sound_file("FLAC", "PCM_16", speech()[:3_000], 16_000), flac(16_000, 1)),
    "mp3": lambda: (mp3(16_000, 1), mp3(16_000, 1), mp3(44_100, 2)),
    "mp3 with tags": lambda: (mp3(16_000, 1) + TAGGED, mp3(16_000, 1, id3v2_version="3"), PICTURE + mp3(16_000, 1)),
    "mp3 without first frames, of two forms": lambda: (plain_mp3(16_000, 1), plain_mp3(48_000, 1)),
    "mp3 with and without a first frame": lambda: (mp3(16_000, 1), plain_mp3(16_000, 1)),
    "adts of two forms": lambda: (PICTURE + by_ffmpeg("adts", "aac", 16_000, 1), by_ffmpeg("adts", "aac", 48_000, 2)),
    "webm": lambda: (by_ffmpeg("webm", "libopus", 48_000, 1, live="1"), by_ffmpeg("webm", "libopus", 48_000, 1)),
    "mp4": lambda: (by_ffmpeg("mp4", "aac", 16_000, 1, **FRAGMENTS), by_ffmpeg("mp4", "aac", 48_000, 2, **FRAGMENTS)),
}
UPLOADED: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "m4a": lambda: (by_ffmpeg("ipod", "aac", 44_100, 2),) * 3,
    "aiff": lambda: (by_libsndfile("AIFF", "PCM_16", 16_000, 1),) * 3,
    "w64": lambda: (by_libsndfile("W64", "PCM_16", 16_000, 1),) * 3,
}


@cache
def chain(name: str) -> tuple[bytes, ...]:
    return (CHAINS | UPLOADED)[name]()


@pytest.mark.parametrize("name", CHAINS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_all_recordings_of_a_chain_are_decoded_live_in_any_pieces(name: str, data: st.DataObject) -> None:
    alone, body = np.concatenate([streamed([part]) for part in chain(name)]), b"".join(chain(name))
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=20))
    assert np.array_equal(streamed(pieces(body, cuts)), alone)
    decoder, drained = open_decoder(ANY, RATE), 0
    for part in chain(name):  # a client may finalize after each recording
        drained += len(decoder.feed(part, 1e9)) + len(decoder.drain())
    assert abs(drained + len(decoder.flush()) - len(alone)) <= len(chain(name))  # a filter's end is rounded


@pytest.mark.parametrize("name", [*CHAINS, *UPLOADED])
def test_all_recordings_of_a_body_are_decoded(name: str) -> None:
    samples, warnings = mixed(b"".join(chain(name)))
    assert warnings == []
    alone = np.concatenate([mixed(part)[0] for part in chain(name)])
    assert len(samples) == len(alone) > 1.9 * RATE * (len(chain(name)) - 1)
    assert np.abs(samples - alone).max() <= 2
    if name != "m4a":  # whose index is at its end
        (warning,) = mixed(b"".join(chain(name))[:-2_000])[1]
        assert warning.startswith(("truncated:", "damaged:"))


@pytest.mark.parametrize("name", ["ogg opus", "flac", "mp3", "mp4"])
def test_a_chain_that_changes_its_channels_is_refused_with_multichannel(name: str) -> None:
    with pytest.raises(NotTaken, match="channels: 1 announced, but the audio has 2"):
        decoded(open_decoder(audio_form(None, None, 1), RATE, multichannel=True), list(chain(name)))


def test_the_error_names_the_damaged_recording_or_what_its_end_lacks() -> None:
    with pytest.raises(BadAudio, match="recording 2 in the body"):
        uploaded(chain("flac")[0] + chain("flac")[0][:60])
    with pytest.raises(BadAudio, match="missing at the end"):
        uploaded(chain("m4a")[0][: len(chain("m4a")[0]) * 2 // 3])
    with pytest.raises(NotTaken, match="moov"):
        streamed([chain("m4a")[0]])


# Containers announced as something else

ENCODINGS = [("linear16", 16_000), ("mulaw", 8_000), ("opus", 48_000), ("flac", None), ("ogg-opus", None)]


@pytest.mark.parametrize("name", [*CHAINS, *UPLOADED])
@pytest.mark.parametrize(("encoding", "rate"), ENCODINGS)
def test_a_container_is_recognized_whatever_the_encoding(name: str, encoding: str, rate: int | None) -> None:
    body, form = chain(name)[0], audio_form(encoding, rate)
    assert np.array_equal(uploaded(body, form)[0], uploaded(body)[0])
    if name in UPLOADED:
        with pytest.raises((NotTaken, Undecodable)):
            streamed([body], form)
    elif rate in (None, RATE):
        expected = streamed([body])
        for size in (1, 7, 20, 5_000):
            assert np.array_equal(streamed(pieces(body, [size, 3 * size, 4_000]), form), expected)


def test_a_container_in_a_stereo_or_resumable_raw_stream() -> None:
    body = chain("flac")[0]
    assert streamed([body], audio_form("linear16", 8_000, 2)).shape == (RATE, 2)
    with pytest.raises(NotTaken, match="encoding=linear16"):
        decoded(open_decoder(audio_form("linear16", RATE), RATE, raw_alone=True), [body])


@settings(max_examples=60, deadline=None)
@given(
    samples=st.binary(max_size=400),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    first=st.sampled_from([b"", b"\xff\xfb\x90\x64", b"\xff\xff", b"OggS\x01", b"RIFF", b"ID3\xff", b"\0\0\0\0ftyp"]),
)
def test_raw_samples_stay_raw_even_where_they_begin_like_a_container(
    samples: bytes, cuts: list[int], first: bytes
) -> None:
    data, form = first + samples, audio_form("linear16", RATE)
    if container_of(data, whole=True):
        return
    expected = np.frombuffer(data[: len(data) // 2 * 2], "<i2")[:, None]
    assert np.array_equal(streamed(pieces(data, cuts), form), expected)
    if len(data) >= 2:
        assert np.array_equal(uploaded(data, form)[0], expected)


def test_the_container_kind_follows_from_the_first_bytes_alone() -> None:
    assert container_kind(b"") is container_kind(b"\xff") is container_kind(b"#EXTM3U") is None
    assert (container_kind(b"\xff\xf1\0"), container_kind(b"\xff\xfb\0")) == ("aac", "mp3")
    assert container_kind(b"\0\0\0\x20ftypM4A ") == "mov"
    assert container_of(b"\xff" * 5_000, whole=True) is container_of(b"\xd5" * 5_000, whole=True) is None  # silence
