"""Chained streams on one connection are decoded as each would be alone, however the bytes are split."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.errors import NotTaken
from tests.support.audio.media_files import FRAGMENTS, container, decoded, pieces, sound_file, speech

RATE = 16_000


def flac(rate: int, channels: int, frames: int | None = None) -> bytes:
    """Return a file by libFLAC, whose last frame is shorter."""
    file = io.BytesIO()
    soundfile.write(file, speech(rate, channels)[:frames], rate, format="FLAC")
    return file.getvalue()


def of(kind: str, codec: str, rate: int = 16_000, channels: int = 1, **options: str) -> Callable[[], bytes]:
    return lambda: container(kind, codec, speech(rate, channels), rate, options=options)


ID3V1 = b"TAG" + bytes(125)
APE = b"APETAGEX" + b"\xd0\7\0\0" + (40).to_bytes(4, "little") + b"\0\0\0\0" + b"\0\0\0\xa0" + bytes(8) + bytes(40)
PARTS: dict[str, list[Callable[[], bytes]]] = {
    "ogg opus": [of("ogg", "libopus"), of("ogg", "libopus", 48_000), of("ogg", "libopus", 48_000, 2)],
    "ogg vorbis": [
        lambda: sound_file("OGG", "VORBIS", speech(), 16_000),
        lambda: sound_file("OGG", "VORBIS", speech(44_100, 2), 44_100),
    ],
    "ogg flac": [of("ogg", "flac"), of("ogg", "flac", 48_000, 2)],
    "ogg of three codecs": [
        of("ogg", "libopus"),
        lambda: sound_file("OGG", "VORBIS", speech(), 16_000),
        of("ogg", "flac"),
    ],
    "flac": [lambda: flac(16_000, 1), lambda: flac(16_000, 1), lambda: flac(44_100, 2), of("flac", "flac")],
    "flac, first of one frame": [lambda: flac(16_000, 1, 3_000), lambda: flac(16_000, 1)],
    "mp3": [of("mp3", "libmp3lame"), of("mp3", "libmp3lame"), of("mp3", "libmp3lame", 44_100, 2)],
    "mp3 with tags": [
        lambda: of("mp3", "libmp3lame", write_id3v1="1")() + APE,
        of("mp3", "libmp3lame", id3v2_version="3"),
    ],
    "mp3 without first frames, of two forms": [
        of("mp3", "libmp3lame", write_xing="0", id3v2_version="0"),
        of("mp3", "libmp3lame", 48_000, write_xing="0", id3v2_version="0"),
    ],
    "mp3 with and without a first frame": [
        of("mp3", "libmp3lame"),
        of("mp3", "libmp3lame", write_xing="0", id3v2_version="0"),
    ],
    "adts of two forms": [of("adts", "aac"), of("adts", "aac", 48_000, 2)],
    "webm": [of("webm", "libopus", 48_000, live="1"), of("webm", "libopus", 48_000)],
    "mp4": [of("mp4", "aac", **FRAGMENTS), of("mp4", "aac", 48_000, 2, **FRAGMENTS)],
}


@cache
def parts(name: str) -> tuple[bytes, ...]:
    return tuple(make() for make in PARTS[name])


def decode(chunks: list[bytes]) -> np.ndarray:
    return decoded(open_decoder(audio_form(None, None), RATE), chunks)


@pytest.mark.parametrize("name", PARTS)
def test_all_streams_of_a_chain_are_decoded(name: str) -> None:
    alone = np.concatenate([decode([part]) for part in parts(name)])
    together = decode(list(parts(name)))
    assert len(alone) > 1.9 * RATE * (len(parts(name)) - 1)
    assert np.array_equal(together, alone)
    assert np.array_equal(decode([b"".join(parts(name))]), alone)


@pytest.mark.parametrize("name", PARTS)
@settings(max_examples=10)
@given(data=st.data())
def test_the_samples_of_a_chain_do_not_depend_on_how_it_is_split(name: str, data: st.DataObject) -> None:
    body = b"".join(parts(name))
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=20))
    assert np.array_equal(decode(pieces(body, cuts)), decode([body]))


@pytest.mark.parametrize("name", PARTS)
def test_a_drain_between_two_streams_loses_nothing(name: str) -> None:
    """A client may finalize after each recording."""
    decoder = open_decoder(audio_form(None, None), RATE)
    blocks = []
    for part in parts(name):
        blocks += [decoder.feed(part, 1e9), decoder.drain()]
    alone = sum(len(decode([part])) for part in parts(name))
    assert abs(sum(map(len, blocks)) + len(decoder.flush()) - alone) <= len(PARTS[name])  # a filter's end is rounded


@pytest.mark.parametrize("name", ["ogg opus", "flac", "mp3", "mp4"])
def test_a_chain_that_changes_its_channels_is_refused_with_multichannel(name: str) -> None:
    decoder = open_decoder(audio_form(None, None, 1), RATE, multichannel=True)
    with pytest.raises(NotTaken, match="channels: 1 announced, but the audio has 2"):
        decoded(decoder, list(parts(name)))
