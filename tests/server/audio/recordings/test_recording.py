"""Uploaded recordings of every kind: own demuxers, FFmpeg for the rest; other files are never opened."""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.formats import AudioForm, Encoding, audio_form, container_kind
from server.audio.raw import mulaw_table
from server.audio.recordings.recording import Recording
from server.errors import BadAudio, BadParameter, Refused, TooLarge
from tests.support.audio.media_files import av, container, likeness, opus_packets, speech

RATE = 16_000
ANY = audio_form(None, None)
FILES = {  # container, codec, rate, channels, correlation with the original
    "webm": ("webm", "libopus", 48_000, 1, 0.99),
    "m4a": ("ipod", "aac", 44_100, 2, 0.99),
    "mp4": ("mp4", "aac", 16_000, 1, 0.99),
    "adts": ("adts", "aac", 16_000, 1, 0.99),
    "mp3": ("mp3", "libmp3lame", 16_000, 1, 0.98),
    "ogg opus": ("ogg", "libopus", 48_000, 2, 0.99),
    "flac": ("flac", "flac", 22_050, 1, 0.999),
    "ogg flac": ("ogg", "flac", 16_000, 1, 0.999),
    "matroska with 24 bits": ("matroska", "pcm_s24le", 48_000, 2, 0.999),
    "wav mulaw": ("wav", "pcm_mulaw", 8_000, 1, 0.999),
}


def read(body: bytes, form: AudioForm = ANY, max_s: float = 60.0) -> np.ndarray:
    """Return all samples of a recording, (S, C) int16."""
    recording, blocks = Recording(body, form, rate=RATE, max_s=max_s), []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.concatenate(blocks)


@pytest.mark.parametrize("name", FILES)
def test_the_sound_survives_within_the_codecs_loss(name: str) -> None:
    kind, codec, rate, channels, wanted = FILES[name]
    context = {"format": "s32"} if codec == "pcm_s24le" else {}
    samples = read(container(kind, codec, speech(rate, channels), rate, **context))
    original = soxr.resample(speech(rate, channels).mean(axis=1), rate, RATE)
    score, shift = likeness(samples.mean(axis=1), original, 3_000)
    assert samples.shape[1] == channels
    assert score > wanted
    assert 0 <= shift < 0.15 * RATE  # the encoder's delay, if the file does not state it
    assert len(samples) - len(original) < 0.2 * RATE


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "W64", "AIFF"])
def test_wav_of_every_kind_is_read(kind: str, subtype: str) -> None:
    file = io.BytesIO()
    subtype = "PCM_S8" if (kind, subtype) == ("AIFF", "PCM_U8") else subtype
    soundfile.write(file, speech(RATE, 2), RATE, format=kind, subtype=subtype)
    expected = soundfile.read(io.BytesIO(file.getvalue()), dtype="float64")[0] * 32_768
    assert np.abs(read(file.getvalue()) - np.clip(expected, -32_768, 32_767)).max() <= 0.5


def test_raw_samples_are_read_as_the_query_says() -> None:
    codes = np.arange(60_000, dtype=np.uint32).astype(np.uint8)
    form = audio_form("mulaw", 16_000, 2)
    assert np.array_equal(read(codes.tobytes() + b"\0", form), mulaw_table()[codes].reshape(-1, 2))
    assert np.array_equal(read(speech().tobytes(), audio_form("linear16", RATE)), speech())
    with pytest.raises(BadAudio, match="shorter than one sample"):
        read(b"\0", form)
    with pytest.raises(BadParameter, match="Ogg or WebM"):
        read(b"".join(opus_packets(speech(48_000))), AudioForm(Encoding.OPUS, 48_000))


def test_an_upload_may_name_the_encoding_of_its_container() -> None:
    for encoding, kind, codec in [("flac", "flac", "flac"), ("ogg-opus", "ogg", "libopus")]:
        samples = read(container(kind, codec, speech(), RATE), audio_form(encoding, None))
        assert likeness(samples[:, 0], speech()[:, 0])[0] > 0.98


def video(tmp_path: Path) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            for packet in stream.encode(av.VideoFrame(64, 64, "yuv420p")):
                output.mux(packet)
        for packet in stream.encode(None):
            output.mux(packet)
    return file.getvalue()


def test_videos_without_audio_and_references_to_other_files_are_refused(tmp_path: Path) -> None:
    """Only the body is read: a playlist that names a file on the server is not a recording."""
    secret = tmp_path / "secret.wav"
    soundfile.write(secret, speech(), RATE)
    bodies = [
        f"#EXTM3U\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n".encode(),
        f"ffconcat version 1.0\nfile '{secret}'\n".encode(),
        f"v=0\nm=audio 5004 RTP/AVP 0\nc=IN IP4 127.0.0.1\n#{secret}".encode(),
        b"[playlist]\nFile1=" + str(secret).encode(),
        b"\x1a\x45\xdf\xa3" + f"file:{secret}".encode(),
        video(tmp_path),
    ]
    for body in bodies:
        with pytest.raises(BadAudio):
            read(body)


def test_a_recording_over_the_length_limit_is_refused() -> None:
    silence = np.zeros((RATE * 24, 1), np.int16)
    for kind, codec in [("webm", "libopus"), ("mp4", "aac"), ("flac", "flac")]:
        rate = 48_000 if codec == "libopus" else RATE
        body = container(kind, codec, np.repeat(silence, rate // RATE, axis=0), rate)
        with pytest.raises(TooLarge):
            read(body, max_s=20.0)


def test_an_empty_body_is_refused_as_empty_whatever_it_is_said_to_be() -> None:
    for form in (ANY, audio_form("linear16", RATE), audio_form("flac", None)):
        with pytest.raises(BadAudio, match="the recording is empty"):
            read(b"", form)


@pytest.mark.parametrize(
    ("name", "kept", "missing"),
    [
        ("webm", 60, "truncated: the WebM stream ends inside an element"),  # before its track
        ("webm", 440, "truncated: the WebM stream ends inside an element"),
        ("ogg opus", 30, "truncated: the Ogg stream ends inside a page"),  # before its track
        ("ogg opus", 47, ""),  # between two pages
        ("ogg opus", 60, "truncated: the Ogg stream ends inside a page"),
        ("ogg flac", 100, "truncated: the Ogg stream ends inside a page"),
    ],
)
def test_a_recording_that_ends_before_its_audio_is_refused(name: str, kept: int, missing: str) -> None:
    kind, codec, rate, *_ = FILES[name]
    body = container(kind, codec, np.zeros((rate, 1), np.int16), rate)
    with pytest.raises(BadAudio) as refused:
        read(body[:kept])
    assert str(refused.value) == "; ".join(["the recording has no audio", *([missing] if missing else [])])


@pytest.mark.parametrize("kind", ["OGG", "AIFF"])
def test_a_complete_recording_without_samples_is_refused(kind: str) -> None:
    body = io.BytesIO()
    soundfile.write(body, np.zeros(0, np.int16), RATE, format=kind)
    with pytest.raises(BadAudio, match=r"^the recording has no audio$"):
        read(body.getvalue())


def test_a_body_of_no_known_kind_is_refused() -> None:
    with pytest.raises(BadAudio, match="not a supported recording"):
        read(b"no audio at all")


def test_the_container_kind_follows_from_the_first_bytes_alone() -> None:
    assert container_kind(b"") is container_kind(b"\xff") is container_kind(b"#EXTM3U") is None
    assert container_kind(b"\xff\xf1\0") == "aac"
    assert container_kind(b"\xff\xfb\0") == "mp3"
    assert container_kind(b"\0\0\0\x20ftypM4A ") == "mov"


@pytest.mark.parametrize("name", ["webm", "m4a", "mp3", "ogg opus", "adts"])
@settings(max_examples=40)
@given(data=st.data())
def test_any_damage_ends_in_audio_or_in_a_refusal(name: str, data: st.DataObject) -> None:
    kind, codec, rate, channels, _ = FILES[name]
    body = bytearray(container(kind, codec, speech(rate, channels)[: rate // 2], rate))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
        body = body or bytearray(b"x")
    began_s = time.process_time()
    with contextlib.suppress(Refused):
        read(bytes(body))
    assert time.process_time() - began_s < 5.0


@pytest.mark.parametrize("kind", ["FLAC", "AIFF"])
def test_a_header_with_too_long_a_duration_is_refused_before_decoding(kind: str) -> None:
    body = io.BytesIO()
    soundfile.write(body, np.zeros(RATE * 61, np.int16), RATE, format=kind)
    with pytest.raises(TooLarge, match="longer than the limit of 60 s"):
        Recording(body.getvalue(), ANY, rate=RATE, max_s=60.0)


def test_samples_of_a_wav_beyond_the_limit_are_refused_where_they_begin() -> None:
    body = io.BytesIO()
    soundfile.write(body, np.zeros(RATE * 61, np.int16), RATE, format="WAV")
    with pytest.raises(TooLarge, match="longer than the limit of 60 s"):
        read_all(Recording(body.getvalue(), ANY, rate=RATE, max_s=60.0))


def test_raw_samples_beyond_the_limit_are_refused_by_their_size() -> None:
    form = audio_form("linear16", 8_000)
    with pytest.raises(TooLarge, match="longer than the limit of 60 s"):
        Recording(bytes(2 * 8_000 * 61), form, rate=RATE, max_s=60.0)


def read_all(recording: Recording) -> np.ndarray:
    blocks = []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.concatenate(blocks)


def test_decoding_stops_at_the_processor_time_limit_for_the_size_of_the_body() -> None:
    body = io.BytesIO()
    soundfile.write(body, np.zeros(RATE * 600, np.int16), RATE, format="FLAC")
    ticks = itertools.count(step=3.0)
    recording = Recording(body.getvalue(), ANY, rate=RATE, max_s=3_600.0, clock=lambda: next(ticks))
    with pytest.raises(TooLarge, match="decoding takes too much processor time"):
        read_all(recording)
