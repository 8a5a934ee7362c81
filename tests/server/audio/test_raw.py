"""Raw samples, and samples in WAV: tables, widths, odd splits, NaN and infinity."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import Encoding, audio_form
from server.audio.raw import alaw_table, mulaw_table
from server.errors import BadParameter, MediaError, NotTaken, Undecodable
from tests.support.audio.media_files import decoded, pieces

PCM = np.random.default_rng(0).integers(-32_768, 32_767, (999, 2)).astype(np.int16)


def via_soundfile(codes: bytes, subtype: str) -> np.ndarray:
    file = io.BytesIO(codes)
    return soundfile.read(file, format="RAW", subtype=subtype, samplerate=8_000, channels=1, dtype="int16")[0]


@pytest.mark.parametrize(("table", "subtype"), [(mulaw_table, "ULAW"), (alaw_table, "ALAW")])
def test_the_tables_are_those_of_the_standard(table: object, subtype: str) -> None:
    """Compared with libsndfile, and with a few known values: silence and the extremes."""
    assert np.array_equal(table(), via_soundfile(bytes(range(256)), subtype))
    assert (mulaw_table()[0xFF], mulaw_table()[0x00], mulaw_table()[0x80]) == (0, -32_124, 32_124)
    assert (alaw_table()[0xD5], alaw_table()[0x55], alaw_table()[0xAA]) == (8, -8, 32_256)


def encode(encoding: str) -> tuple[bytes, np.ndarray]:
    """Return two channels of encoded noise and the expected samples."""
    if encoding == "linear16":
        return PCM.tobytes(), PCM
    if encoding == "linear32":
        return (PCM / 32_768).astype("<f4").tobytes(), PCM
    table = mulaw_table() if encoding == "mulaw" else alaw_table()
    codes = (PCM & 0xFF).astype(np.uint8)
    return codes.tobytes(), table[codes]


@pytest.mark.parametrize("encoding", ["linear16", "linear32", "mulaw", "alaw"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_the_samples_do_not_depend_on_how_the_bytes_are_split(encoding: str, cuts: list[int]) -> None:
    data, expected = encode(encoding)
    decoder = open_decoder(audio_form(encoding, 8_000, 2), 16_000)
    assert (decoder.rate, decoder.channels, decoder.inline) == (8_000, 2, True)
    assert np.array_equal(decoded(decoder, pieces(data + b"\1", cuts)), expected)  # half a frame is dropped


@given(st.binary(max_size=400))
def test_nan_becomes_silence_and_infinite_floats_full_scale(data: bytes) -> None:
    samples = decoded(
        open_decoder(audio_form("linear32", 16_000), 16_000), [data]
    )  # the first bytes wait for container detection
    assert samples.dtype == np.int16
    assert len(samples) == len(data) // 4
    strange = np.array([np.nan, np.inf, -np.inf, 3e38, -1.0, 1.0, 0.5], "<f4")
    fed = open_decoder(audio_form("linear32", 16_000), 16_000).feed(strange.tobytes(), 1.0)
    assert fed[:, 0].tolist() == [0, 32_767, -32_768, 32_767, -32_768, 32_767, 16_384]


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_a_live_wav_stream_gives_what_libsndfile_reads(kind: str, subtype: str, cuts: list[int]) -> None:
    file = io.BytesIO()
    soundfile.write(file, PCM, 16_000, format=kind, subtype=subtype)
    expected = soundfile.read(io.BytesIO(file.getvalue()), dtype="float64", always_2d=True)[0] * 32_768
    found = decoded(open_decoder(audio_form(None, None, 2), 16_000, multichannel=True), pieces(file.getvalue(), cuts))
    assert np.abs(found - np.clip(expected, -32_768, 32_767)).max() <= 0.5


def wav(size: int, body: bytes, tag: int = 1, bits: int = 16, extra: bytes = b"") -> bytes:
    fmt = struct.pack("<HHIIHH", tag, 1, 16_000, 32_000, 2, bits)
    head = b"RIFF\xff\xff\xff\xffWAVE" + extra + b"fmt " + struct.pack("<I", len(fmt)) + fmt
    return head + b"data" + struct.pack("<I", size) + body


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF - 36])
def test_a_wav_stream_of_unknown_length_continues(size: int) -> None:
    samples = decoded(open_decoder(audio_form(None, None), 16_000), [wav(size, PCM[:, 0].tobytes())])
    assert np.array_equal(samples[:, 0], PCM[:, 0])


def test_chunks_around_the_samples_of_a_wav_file_are_skipped() -> None:
    listed = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    file = wav(1_000, PCM[:500, 0].tobytes() + listed, extra=listed)
    samples = decoded(open_decoder(audio_form(None, None), 16_000), pieces(file, range(0, 2_000, 7)))
    assert np.array_equal(samples[:, 0], PCM[:500, 0])


@pytest.mark.parametrize(
    ("data", "error", "named"),
    [
        (wav(0, b"", tag=17, bits=4), NotTaken, "WAV format 17"),
        (wav(0, b"").replace(b"fmt ", b"fmtx"), Undecodable, "no fmt chunk"),
        (b"RIFF\0\0\0\0AVI LIST", Undecodable, "not a WAV stream"),
        (b"RIFF\0\0\0\0WAVEfmt \2\0\0\0\1\0", Undecodable, "damaged"),
        (b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff", Undecodable, "damaged"),
        (b"RIFF\0\0\0\0WAVEJUNK\xff\xff\xff\xff", Undecodable, "no audio in"),
        (b"RIFF\0\0\0\0WAVE" + b"JUNK\0\0\0\0" * 5_000, Undecodable, "no audio in"),
    ],
)
def test_a_malformed_wav_stream_is_refused(data: bytes, error: type[MediaError], named: str) -> None:
    with pytest.raises(error, match=named):
        decoded(open_decoder(audio_form(None, None), 16_000), [data])


def test_encodings_are_read_as_the_protocol_says() -> None:
    assert audio_form(None, 8_000, 2).encoding is Encoding.CONTAINER
    assert audio_form("flac", 44_100).sample_rate is None  # the stream's header has the rate
    assert audio_form("mulaw", 8_000).decoded_rate(16_000) == 8_000
    assert audio_form("opus", 16_000).decoded_rate(16_000) == 48_000
    assert audio_form("ogg-opus", None, 2).decoded_rate(16_000) == 16_000
    assert audio_form(None, None, 2).decoded_channels(multichannel=False) == 1
    assert audio_form(None, None, 2).decoded_channels(multichannel=True) == 2
    assert audio_form("linear16", 8_000, 2).decoded_channels(multichannel=False) == 2
    for encoding, rate, channels, named in [
        ("speex", 8_000, 1, "encoding: 'speex'"),
        ("container", None, 1, "encoding"),
        ("mulaw", None, 1, "sample_rate"),
        ("opus", 48_000, 3, "channels"),
    ]:
        with pytest.raises(BadParameter, match=named):
            audio_form(encoding, rate, channels)
