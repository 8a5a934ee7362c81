"""Concatenated recordings in one body are all decoded; a container is recognized whatever `encoding` says."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording
from server.audio.sniffing import container_of
from server.errors import BadAudio, NotTaken, Undecodable
from tests.support.audio.media_files import container, decoded, likeness, pieces, speech

RATE = 16_000
ANY = audio_form(None, None)


def written(kind: str, subtype: str | None = None, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, speech(rate), rate, format=kind, subtype=subtype)
    return file.getvalue()


PLAIN_MP3 = {"write_xing": "0", "id3v2_version": "0"}
KINDS = {
    "wav": lambda: written("WAV"),
    "flac": lambda: written("FLAC"),
    "ogg opus": lambda: written("OGG", "OPUS", 48_000),
    "ogg vorbis": lambda: written("OGG", "VORBIS"),
    "ogg flac": lambda: container("ogg", "flac", speech(), RATE),
    "mp3 with its length": lambda: written("MP3"),
    "mp3 with tags": lambda: container("mp3", "libmp3lame", speech(), RATE),
    "mp3 of frames alone": lambda: container("mp3", "libmp3lame", speech(), RATE, options=PLAIN_MP3),
    "webm": lambda: container("webm", "libopus", speech(48_000), 48_000),
    "m4a": lambda: container("ipod", "aac", speech(44_100, 2), 44_100),
    "fragmented mp4": lambda: container("mp4", "aac", speech(), RATE, options={"movflags": "frag_keyframe+empty_moov"}),
    "adts": lambda: container("adts", "aac", speech(), RATE),
    "aiff": lambda: written("AIFF"),
    "w64": lambda: written("W64"),
}
NOT_LIVE = ("m4a", "aiff", "w64")
LIVE = tuple(name for name in KINDS if name not in NOT_LIVE)


@cache
def one(name: str) -> bytes:
    return KINDS[name]()


def read(body: bytes, form=ANY) -> tuple[np.ndarray, list[str]]:
    recording, blocks = Recording(body, form, rate=RATE, max_s=600.0), []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.concatenate(blocks), recording.warnings


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("times", [2, 3])
def test_concatenated_recordings_are_all_decoded(name: str, times: int) -> None:
    alone, _ = read(one(name))
    samples, warnings = read(one(name) * times)
    assert warnings == []
    assert len(samples) == pytest.approx(times * len(alone), abs=0.12 * RATE * times)
    last = samples[-len(alone) :, 0]
    assert likeness(last, speech()[:, 0], 3_000)[0] > 0.97


def test_recordings_with_different_rates_are_all_decoded() -> None:
    body = written("FLAC", rate=48_000) + written("FLAC", rate=8_000) + written("FLAC")
    assert len(read(body)[0]) == pytest.approx(6 * RATE, abs=3)
    slow, fast = (container("mp3", "libmp3lame", speech(rate), rate) for rate in (16_000, 44_100))
    assert len(read(slow + fast)[0]) == pytest.approx(4 * RATE, abs=0.3 * RATE)


def test_the_error_names_the_damaged_recording() -> None:
    with pytest.raises(BadAudio, match="recording 2 in the body"):
        read(one("flac") + one("flac")[:60])


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("mp3 of frames alone", "m4a")])
def test_a_truncated_recording_gives_a_warning(name: str) -> None:
    body = written("OGG", "VORBIS", 48_000) if name == "ogg vorbis" else one(name)  # of several pages
    samples, warnings = read(body[: len(body) * 2 // 3])
    assert 0 < len(samples) <= 1.5 * RATE
    assert [text.partition(":")[0] for text in warnings] == ["truncated"]
    assert read(body)[1] == []


def test_a_file_without_its_index_is_refused_as_truncated() -> None:
    with pytest.raises(BadAudio, match="missing at the end"):
        read(one("m4a")[: len(one("m4a")) * 2 // 3])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("encoding", "rate"), [("linear16", 16_000), ("mulaw", 8_000), ("opus", 48_000), ("flac", None)]
)
def test_an_uploaded_container_is_recognized_whatever_the_encoding(name: str, encoding: str, rate: int | None) -> None:
    assert np.array_equal(read(one(name), audio_form(encoding, rate))[0], read(one(name))[0])


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize(("encoding", "rate"), [("linear16", 16_000), ("mulaw", 16_000), ("ogg-opus", None)])
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 60_000), max_size=6), small=st.integers(0, 20))
def test_a_live_container_is_recognized_whatever_the_encoding(
    name: str, encoding: str, rate: int | None, cuts: list[int], small: int
) -> None:
    form = audio_form(encoding, rate)
    plain = decoded(open_decoder(ANY, RATE), [one(name)])
    assert np.array_equal(decoded(open_decoder(form, RATE), pieces(one(name), [*cuts, small])), plain)


@pytest.mark.parametrize("name", NOT_LIVE)
def test_a_container_unsupported_live_is_never_decoded_as_raw_samples(name: str) -> None:
    try:
        samples = decoded(open_decoder(audio_form("linear16", RATE), RATE), [one(name)])
    except (NotTaken, Undecodable):
        return
    assert likeness(samples[:, 0], speech()[:, 0], 3_000)[0] > 0.97


def test_a_container_in_a_stereo_or_resumable_raw_stream() -> None:
    samples = decoded(open_decoder(audio_form("linear16", 8_000, 2), RATE), [one("flac")])
    assert samples.shape == (RATE, 2)
    with pytest.raises(NotTaken, match="encoding=linear16"):
        decoded(open_decoder(audio_form("linear16", RATE), RATE, raw_alone=True), [one("flac")])


@settings(max_examples=60, deadline=None)
@given(
    samples=st.binary(max_size=400),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    first=st.sampled_from([b"", b"\xff\xfb\x90\x64", b"\xff\xff", b"OggS\x01", b"RIFF", b"ID3\xff", b"\0\0\0\0ftyp"]),
)
def test_raw_samples_stay_raw_even_where_they_begin_like_a_container(
    samples: bytes, cuts: list[int], first: bytes
) -> None:
    data = first + samples
    if container_of(data, whole=True):
        return
    expected = np.frombuffer(data[: len(data) // 2 * 2], "<i2")[:, None]
    assert np.array_equal(decoded(open_decoder(audio_form("linear16", RATE), RATE), pieces(data, cuts)), expected)
    if len(data) >= 2:
        assert np.array_equal(read(data, audio_form("linear16", RATE))[0], expected)


def test_telephone_silence_is_not_mp3() -> None:
    assert container_of(b"\xff" * 5_000, whole=True) is None
    assert container_of(b"\xd5" * 5_000, whole=True) is None
