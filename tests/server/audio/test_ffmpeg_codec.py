"""Compressed live audio is decoded to the original sound, however the bytes are split."""

from __future__ import annotations

import io
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.packets import LiveDecoder
from server.errors import NotTaken
from tests.support.audio.media_files import container, decoded, likeness, opus_packets, pieces, speech

RATE = 16_000
# Container, codec, rate, channels, name on the wire, muxer options, encoder settings, correlation with the original.
FORMS = {
    "webm": ("webm", "libopus", 48_000, 1, None, {"live": "1"}, {"bit_rate": 32_000}, 0.99),
    "webm stereo, sizes known": ("webm", "libopus", 48_000, 2, None, {}, {"bit_rate": 64_000}, 0.99),
    "ogg-opus": ("ogg", "libopus", 16_000, 1, "ogg-opus", {}, {"bit_rate": 24_000}, 0.98),
    "ogg-opus sniffed, 8 kHz": ("ogg", "libopus", 8_000, 1, None, {}, {"bit_rate": 16_000}, 0.95),
    "ogg-opus of six channels": ("ogg", "libopus", 48_000, 6, None, {}, {}, 0.99),
    "flac": ("flac", "flac", 16_000, 1, "flac", {}, {}, 0.999_999),
    "flac 44.1 kHz stereo": ("flac", "flac", 44_100, 2, None, {}, {}, 0.999_99),
    "flac 24 bits": ("flac", "flac", 48_000, 1, None, {}, {"format": "s32"}, 0.999_99),
    "wav mulaw": ("wav", "pcm_mulaw", 8_000, 1, None, {}, {}, 0.999),
    "wav 48 kHz stereo": ("wav", "pcm_s16le", 48_000, 2, None, {}, {}, 0.999_99),
}


@cache
def recording(name: str) -> bytes:
    kind, codec, rate, channels, _, options, context, _ = FORMS[name]
    return container(kind, codec, speech(rate, channels), rate, options=options, **context)


def opened(name: str) -> LiveDecoder:
    return open_decoder(audio_form(FORMS[name][4], None), RATE)


@cache
def whole(name: str) -> np.ndarray:
    return decoded(opened(name), [recording(name)])


@pytest.mark.parametrize("name", FORMS)
def test_the_sound_survives_within_the_codecs_loss(name: str) -> None:
    _, _, rate, channels, _, _, _, wanted = FORMS[name]
    original = soxr.resample(speech(rate, channels).mean(axis=1), rate, RATE)
    score, shift = likeness(whole(name)[:, 0], original)
    assert score > wanted
    assert abs(shift) <= 16  # a millisecond
    assert 0 <= len(whole(name)) - len(original) < 0.03 * RATE  # the last packet is padded
    assert (opened(name).rate, opened(name).channels, opened(name).inline) == (RATE, 1, False)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=12)
@given(data=st.data())
def test_the_samples_do_not_depend_on_how_the_bytes_are_split(name: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(recording(name))), max_size=30))
    assert np.array_equal(decoded(opened(name), pieces(recording(name), cuts)), whole(name))


@pytest.mark.parametrize("name", ["webm", "ogg-opus", "flac"])
def test_byte_by_byte_gives_the_same_samples(name: str) -> None:
    data = recording(name)[:6_000]
    assert np.array_equal(decoded(opened(name), pieces(data, range(6_000))), decoded(opened(name), [data]))


@pytest.mark.parametrize("name", ["webm", "ogg-opus", "flac", "flac 44.1 kHz stereo"])
def test_audio_is_decoded_as_it_arrives(name: str) -> None:
    """At most one block is held back, so that speech is recognized as it is spoken."""
    data, decoder = recording(name), opened(name)
    half = decoder.feed(data[: len(data) // 2], 1e9)
    held_back_s = 1.1 if name == "ogg-opus" else 0.6  # this muxer fills a page with a second
    assert len(half) / RATE > len(whole(name)) / RATE * 0.5 - held_back_s


@pytest.mark.parametrize(("channels", "frame_ms"), [(1, 20), (2, 20), (1, 10), (1, 60)])
def test_raw_opus_packets_are_messages(channels: int, frame_ms: int) -> None:
    pcm = speech(48_000, channels)
    decoder = open_decoder(audio_form("opus", 48_000, channels), RATE)
    assert (decoder.rate, decoder.channels, decoder.inline) == (48_000, channels, True)
    samples = decoded(decoder, opus_packets(pcm, frame_ms=frame_ms))
    assert samples.shape[1] == channels
    for i in range(channels):
        assert likeness(samples[:, i], pcm[:, i])[0] > 0.99


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
    decoder = open_decoder(audio_form(None, None), RATE)
    sizes = [len(decoder.feed(bytes.fromhex(message), 1.0)) for message in CHROMIUM]
    assert all(0 < size / RATE < 0.13 for size in sizes)
    assert sum(sizes) + len(decoder.flush()) == 5 * 0.06 * RATE


def test_multichannel_keeps_channels_apart() -> None:
    data = recording("flac 44.1 kHz stereo")
    samples = decoded(open_decoder(audio_form("flac", None, 2), RATE, multichannel=True), pieces(data, [5_000]))
    assert samples.shape[1] == 2
    assert np.linalg.norm(samples[:, 1].astype(float)) == pytest.approx(
        np.linalg.norm(samples[:, 0].astype(float)) / 2, 0.01
    )
    with pytest.raises(NotTaken, match="channels: 2 announced, but the audio has 1"):
        decoded(open_decoder(audio_form(None, None, 2), RATE, multichannel=True), [recording("flac")])


@pytest.mark.parametrize("name", ["webm", "ogg-opus"])
def test_a_new_header_starts_a_new_track(name: str) -> None:
    """A client that reopens its microphone sends a new header in the same stream."""
    twice = decoded(opened(name), [recording(name), recording(name)])
    assert len(twice) == 2 * len(whole(name))
    assert np.array_equal(twice[: len(whole(name))], whole(name))


@pytest.mark.parametrize("name", FORMS)
def test_a_drain_returns_all_audio_received_and_the_stream_continues(name: str) -> None:
    """As needed for `Finalize`: the filter delay and the last complete frame."""
    data, decoder = recording(name), opened(name)
    first = np.concatenate([decoder.feed(data, 1e9), decoder.drain()])
    assert np.array_equal(first, whole(name))
    assert not len(decoder.drain())
    assert not len(decoder.flush())
    early = opened(name)
    parts = [early.feed(data[: len(data) // 2], 1e9), early.drain(), early.feed(data[len(data) // 2 :], 1e9)]
    together = np.concatenate([*parts, early.flush()])
    assert abs(len(together) - len(whole(name))) <= 1  # the filter's end is rounded


def test_a_drain_returns_the_last_whole_flac_frame() -> None:
    file = io.BytesIO()
    soundfile.write(file, speech(RATE), RATE, format="FLAC")  # by libFLAC, in blocks of 4,096
    data = file.getvalue()
    decoder = open_decoder(audio_form("flac", None), RATE)
    fed = [decoder.feed(data, 1e9), decoder.drain()]
    assert [len(block) for block in fed] == [len(speech(RATE)) // 4_096 * 4_096, len(speech(RATE)) % 4_096]


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
    subprocess.run([sys.executable, "-c", NO_IMPORTS], input=recording("webm"), check=True, timeout=60)
