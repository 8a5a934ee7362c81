"""Live MP3, AAC, MP4, Ogg Vorbis and Ogg FLAC give the samples of the whole file, however the bytes are split."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form, container_kind
from server.audio.recordings.ffmpeg_container import AvSource
from server.audio.recordings.recording import Recording
from server.errors import NotTaken
from tests.support.audio.media_files import FRAGMENTS, container, decoded, index_first, pieces, sound_file, speech

Encoder = Callable[[int, int], bytes]  # rate and channels


def ffmpeg(kind: str, codec: str, **options: str) -> Encoder:
    return lambda rate, channels: container(kind, codec, speech(rate, channels), rate, options=options)


def libsndfile(kind: str, codec: str) -> Encoder:
    return lambda rate, channels: sound_file(kind, codec, speech(rate, channels), rate)


KINDS: dict[str, Encoder] = {
    "mp3": ffmpeg("mp3", "libmp3lame"),
    "mp3 by libsndfile": libsndfile("MP3", "MPEG_LAYER_III"),
    "mp3 without its first frame": ffmpeg("mp3", "libmp3lame", write_xing="0", id3v2_version="0"),
    "adts": ffmpeg("adts", "aac"),
    "fragmented mp4 of aac": ffmpeg("mp4", "aac", **FRAGMENTS),
    "fragmented mp4 of opus": ffmpeg("mp4", "libopus", **FRAGMENTS),
    "fragmented mp4 of flac": ffmpeg("mp4", "flac", strict="-2", **FRAGMENTS),
    "fragmented mp4 of mp3": ffmpeg("mp4", "libmp3lame", **FRAGMENTS),
    "fragmented mp4 with offsets of the file": ffmpeg(
        "mp4", "aac", movflags="frag_keyframe+empty_moov", frag_duration="200000"
    ),
    "ogg vorbis": libsndfile("OGG", "VORBIS"),
    "ogg flac": ffmpeg("ogg", "flac"),
    "ogg opus": ffmpeg("ogg", "libopus"),
    "webm": ffmpeg("webm", "libopus"),
    "matroska of aac": ffmpeg("matroska", "aac"),
    "matroska of mp3": ffmpeg("matroska", "libmp3lame"),
    "matroska of flac": ffmpeg("matroska", "flac"),
    "matroska of pcm": ffmpeg("matroska", "pcm_s16le"),
}
FORMS = [(48_000, 1), (48_000, 2), (16_000, 1), (44_100, 2)]
CASES = [
    (name, rate, channels)
    for name in KINDS
    for rate, channels in FORMS
    if rate == 48_000 or not ("opus" in name or name == "webm")  # FFmpeg decodes Opus at 48 kHz, as we do
]


@cache
def recording(name: str, rate: int, channels: int) -> bytes:
    return KINDS[name](rate, channels)


def live(chunks: list[bytes], rate: int, channels: int) -> np.ndarray:
    form = audio_form(None, None, channels)
    return decoded(open_decoder(form, rate, multichannel=channels > 1), chunks)


def of_file(body: bytes) -> np.ndarray:
    source = AvSource(body, container_kind(body) or "")
    blocks = []
    while len(block := source.read()):
        blocks.append(block)
    return np.concatenate(blocks)


@pytest.mark.parametrize(("name", "rate", "channels"), CASES)
def test_a_live_stream_has_the_samples_of_the_whole_file(name: str, rate: int, channels: int) -> None:
    body = recording(name, rate, channels)
    whole = live([body], rate, channels)
    expected = of_file(body)
    assert whole.shape == expected.shape
    assert np.abs(whole.astype(int) - expected).max() <= 1  # FFmpeg dithers Opus at another stage


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_the_samples_do_not_depend_on_how_the_bytes_are_split(name: str, data: st.DataObject) -> None:
    body = recording(name, 48_000, 1)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=30))
    assert np.array_equal(live(pieces(body, cuts), 48_000, 1), live([body], 48_000, 1))


@pytest.mark.parametrize("name", [name for name in KINDS if "pcm" not in name])
def test_single_bytes_give_the_same_samples(name: str) -> None:
    body = recording(name, 48_000, 1)
    assert np.array_equal(live(pieces(body, range(len(body))), 48_000, 1), live([body], 48_000, 1))


@pytest.mark.parametrize("name", ["mp3", "adts", "fragmented mp4 of aac", "ogg opus", "webm"])
def test_audio_is_decoded_while_it_arrives(name: str) -> None:
    body, decoder = recording(name, 48_000, 1), open_decoder(audio_form(None, None), 48_000)
    half = decoder.feed(body[: len(body) // 2], 1e9)
    assert len(half) / 48_000 > 0.5  # the longest page holds a second


@pytest.mark.parametrize("name", ["mp3", "mp3 by libsndfile", "ogg vorbis"])
def test_an_upload_has_the_length_of_the_stream(name: str) -> None:
    body = recording(name, 48_000, 1)
    upload, length = Recording(body, audio_form(None, None), rate=48_000, max_s=60.0), 0
    while (block := upload.next_block()) is not None:
        length += len(block)
    assert length == len(live([body], 48_000, 1))


def test_only_mp4_with_its_index_first_is_decoded_live() -> None:
    body = index_first("aac", 48_000, 1)
    assert np.array_equal(live(pieces(body, range(0, len(body), 997)), 48_000, 1), of_file(body))
    with pytest.raises(NotTaken, match="moov"):
        live([container("mp4", "aac", speech(48_000), 48_000)], 48_000, 1)


def test_a_tag_with_a_picture_before_the_audio_is_skipped() -> None:
    picture = 200_000
    size = bytes(picture >> shift & 0x7F for shift in (21, 14, 7, 0))
    tag = b"ID3\4\0\0" + size + bytes(picture)
    for name in ("mp3 without its first frame", "adts"):
        body = recording(name, 48_000, 1)
        assert np.array_equal(live(pieces(tag + body, [3, 100, 150_000]), 48_000, 1), live([body], 48_000, 1))
