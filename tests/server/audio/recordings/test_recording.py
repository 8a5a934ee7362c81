"""Uploaded recordings of every kind: own demuxers, FFmpeg for the rest; other files are never opened."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile

from server.audio.decoder import open_decoder
from server.audio.formats import AudioForm, Encoding, audio_form
from server.audio.raw import mulaw_table
from server.audio.recordings.recording import Recording
from server.errors import BadAudio, BadParameter, TooLarge
from tests.support.audio.media_files import (
    ANY,
    FRAGMENTS,
    Pipe,
    av,
    by_ffmpeg,
    container,
    decoded,
    likeness,
    opus_packets,
    sound_file,
    speech,
    uploaded,
)

RATE = 16_000


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "W64", "AIFF"])
def test_samples_of_every_width_are_those_that_libsndfile_reads(kind: str, subtype: str) -> None:
    subtype = "PCM_S8" if (kind, subtype) == ("AIFF", "PCM_U8") else subtype
    body = sound_file(kind, subtype, speech(RATE, 2), RATE)
    expected = np.clip(soundfile.read(io.BytesIO(body), dtype="float64")[0] * 32_768, -32_768, 32_767)
    assert np.abs(uploaded(body)[0] - expected).max() <= 0.5
    if kind.startswith("WAV"):
        live = decoded(open_decoder(audio_form(None, None, 2), RATE, multichannel=True), [body])
        assert np.abs(live - expected).max() <= 0.5


def test_raw_samples_are_read_as_the_query_says() -> None:
    codes = np.arange(60_000, dtype=np.uint32).astype(np.uint8)
    form = audio_form("mulaw", 16_000, 2)
    assert np.array_equal(uploaded(codes.tobytes() + b"\0", form)[0], mulaw_table()[codes].reshape(-1, 2))
    assert np.array_equal(uploaded(speech().tobytes(), audio_form("linear16", RATE))[0], speech())
    with pytest.raises(BadAudio, match="shorter than one sample"):
        uploaded(b"\0", form)
    with pytest.raises(BadParameter, match="Ogg or WebM"):
        uploaded(b"".join(opus_packets(speech(48_000))), AudioForm(Encoding.OPUS, 48_000))


def video() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for frame in [*(av.VideoFrame(64, 64, "yuv420p") for _ in range(5)), None]:
            output.mux(stream.encode(frame))
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
        video(),
    ]
    for body in bodies:
        with pytest.raises(BadAudio):
            uploaded(body)


@pytest.mark.parametrize("times", [1, 2])
def test_a_recording_between_id3_tags_is_read(times: int) -> None:
    """Some programs write them around FLAC, too (Vanilagy/mediabunny#417)."""
    body = b"ID3\x04\0\0\0\0\1\0" + bytes(128) + sound_file("FLAC", "PCM_16", speech(), 16_000) * times
    samples, warnings = uploaded(body + b"TAG" + bytes(125))
    assert np.array_equal(samples, np.concatenate([speech()] * times))
    assert warnings == []


def test_an_empty_body_is_refused_as_empty_whatever_it_is_said_to_be() -> None:
    for form in (ANY, audio_form("linear16", RATE), audio_form("flac", None)):
        with pytest.raises(BadAudio, match="the recording is empty"):
            uploaded(b"", form)


@pytest.mark.parametrize(
    ("kind", "kept", "missing"),
    [
        ("webm", 60, "truncated: the WebM stream ends inside an element"),  # before its track
        ("webm", 440, "truncated: the WebM stream ends inside an element"),
        ("ogg", 30, "truncated: the Ogg stream ends inside a page"),  # before its track
        ("ogg", 47, ""),  # between two pages
        ("ogg", 60, "truncated: the Ogg stream ends inside a page"),
    ],
)
def test_a_recording_that_ends_before_its_audio_is_refused(kind: str, kept: int, missing: str) -> None:
    body = container(kind, "libopus", np.zeros((48_000, 1), np.int16), 48_000)
    with pytest.raises(BadAudio) as refused:
        uploaded(body[:kept])
    assert str(refused.value) == "; ".join(["the recording has no audio", *([missing] if missing else [])])


def test_a_body_without_samples_or_of_no_known_kind_is_refused() -> None:
    for kind, codec in (("OGG", "VORBIS"), ("AIFF", "PCM_16")):
        with pytest.raises(BadAudio, match=r"^the recording has no audio$"):
            uploaded(sound_file(kind, codec, np.zeros((0, 1), np.int16), RATE))
    with pytest.raises(BadAudio, match="not a supported recording"):
        uploaded(b"no audio at all")


@pytest.mark.parametrize(("kind", "codec"), [("aiff", "pcm_s16be"), ("au", "pcm_s16be"), ("wav", "adpcm_ms")])
def test_a_length_that_a_writer_left_open_is_not_believed(kind: str, codec: str) -> None:
    """Of writers to a pipe, which cannot go back to the header, such as sox."""
    body = container(kind, codec, speech(), RATE)
    written = bytearray(body)
    if kind == "aiff":
        written[4:8] = b"\x7f\0\0\x58"
        for name, after, size in ((b"COMM", 10, 0x3F800000), (b"SSND", 4, 0x7F000008)):
            at = body.index(name) + after
            written[at : at + 4] = size.to_bytes(4, "big")
    elif kind == "au":
        written[8:12] = b"\x7f\xff\xff\xff"
    else:
        for at in (4, body.index(b"fact") + 8, body.index(b"data") + 4):
            written[at : at + 4] = b"\xff\xff\xff\xff"
    result, warnings = uploaded(bytes(written), max_s=60.0)
    assert np.array_equal(result, uploaded(body)[0])
    assert warnings == []


@pytest.mark.parametrize(
    ("kind", "codec"),
    [(kind, f"pcm_s16{order}") for kind, order in (("aiff", "be"), ("au", "be"), ("caf", "le"), ("w64", "le"))],
)
def test_a_recording_that_was_written_to_a_pipe_is_read(kind: str, codec: str) -> None:
    samples, warnings = uploaded(container(kind, codec, speech(), RATE, file=Pipe()))
    assert np.array_equal(samples, speech())
    assert warnings == []


@pytest.mark.parametrize(("kind", "size"), [("CAF", 4_096), ("W64", 104)])
def test_a_header_that_libsndfile_repeats_in_a_pipe_is_not_audio(kind: str, size: int) -> None:
    """As `sox call.wav -t caf - | curl …` sends it; the last one is missing if sox is ended."""
    body = sound_file(kind, "PCM_24", speech(), RATE)
    for last in (body[:size], b""):
        samples, warnings = uploaded(body[:size] + body + last)
        assert np.array_equal(samples, speech())
        assert warnings == []


@pytest.mark.parametrize(
    ("magic", "speaks", "pauses"), [(b"#!AMR\n", b"\x3c", b"\x44"), (b"#!AMR-WB\n", b"\x1c", b"\x4c")]
)
def test_pauses_in_amr_are_silence(magic: bytes, speaks: bytes, pauses: bytes) -> None:
    """Telephones send few frames in a pause (DTX), without speech (6 bytes) or without data (1 byte)."""
    spoken = (speaks + bytes(31 if magic == b"#!AMR\n" else 36)) * 25
    samples, warnings = uploaded(magic + spoken + (pauses + bytes(5) + b"\x7c" * 7) * 10 + spoken)
    assert len(samples) == 130 * RATE // 50
    assert not samples[30 * RATE // 50 : 100 * RATE // 50].any()
    assert warnings == []


def test_a_part_of_a_recording_is_refused_as_such_and_an_encrypted_one_too() -> None:
    """The second and later pieces of a browser's recorder lack the header; old QuickTime files lack only `ftyp`."""
    mp4, webm = by_ffmpeg("mp4", "aac", RATE, 1, **FRAGMENTS), container("webm", "libopus", speech(48_000), 48_000)
    for body, problem in (
        (mp4[mp4.index(b"moof") - 4 :], r"MP4 stream does not begin with its header \(moov\)"),
        (webm[webm.index(b"\x1f\x43\xb6\x75") :], r"WebM stream does not begin with its header \(Tracks\)"),
        (mp4.replace(b"mp4a", b"enca"), "the recording is encrypted"),
    ):
        with pytest.raises(BadAudio, match=problem):
            uploaded(body)
    for name in (b"wide", b"free", b"skip"):
        assert np.array_equal(uploaded(mp4.replace(b"ftyp", name, 1))[0], uploaded(mp4)[0])


@pytest.mark.parametrize(
    ("kind", "codec", "live"),
    [
        ("matroska", "libopus", True),
        ("matroska", "mp2", True),
        ("ogg", "libopus", True),
        ("mp4", "aac", True),
        ("mov", "pcm_s16le", False),
    ],
)
def test_audio_tracks_after_the_first_are_skipped_with_a_warning(kind: str, codec: str, live: bool) -> None:
    body = container(kind, codec, speech(48_000), 48_000, options=FRAGMENTS if kind == "mp4" else None, tracks=3)
    samples, warnings = uploaded(body)
    assert likeness(samples[:, 0], speech()[:, 0])[0] > 0.99
    assert warnings == ["skipped: the first of 3 audio tracks is recognized, the others are not"]
    if live:
        decoder = open_decoder(ANY, RATE)
        assert np.abs(decoded(decoder, [body]).astype(int) - samples).max() <= 1
        assert decoder.warnings == warnings


SILENCE = np.zeros((RATE * 61, 1), np.int16)
TOO_LONG = {  # recordings of 61 s, and whether their length is known before decoding
    "flac": (lambda: sound_file("FLAC", "PCM_16", SILENCE, RATE), ANY, True),
    "aiff": (lambda: sound_file("AIFF", "PCM_16", SILENCE, RATE), ANY, True),
    "raw": (SILENCE.tobytes, audio_form("linear16", RATE), True),
    "webm": (lambda: container("webm", "libopus", np.repeat(SILENCE, 3, axis=0), 48_000), ANY, True),
    "mp4": (lambda: container("mp4", "aac", SILENCE, RATE), ANY, True),
    "wav": (lambda: sound_file("WAV", "PCM_16", SILENCE, RATE), ANY, False),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_recording_over_the_length_limit_is_refused_before_decoding_if_possible(name: str) -> None:
    make, form, at_once = TOO_LONG[name]
    body = make()
    with pytest.raises(TooLarge, match="longer than the limit of 60 s"):
        uploaded(body, form, max_s=60.0)
    if at_once:
        with pytest.raises(TooLarge):
            Recording(body, form, rate=RATE, max_s=60.0)


def test_decoding_stops_at_the_processor_time_limit_for_the_size_of_the_body() -> None:
    ticks = itertools.count(step=3.0)
    body = sound_file("FLAC", "PCM_16", np.zeros((RATE * 600, 1), np.int16), RATE)
    with pytest.raises(TooLarge, match=r"decoding takes too much processor time.* stopped after 6 s"):
        uploaded(body, clock=lambda: next(ticks))
