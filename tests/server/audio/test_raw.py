"""Raw samples: tables, widths, odd splits, NaN and infinity."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import Encoding, audio_form
from server.audio.raw import alaw_table, mulaw_table
from server.audio.sniffing import container_of
from server.errors import BadParameter
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


@given(st.binary(max_size=400).filter(lambda data: container_of(data, whole=True) is None))
def test_nan_becomes_silence_and_infinite_floats_full_scale(data: bytes) -> None:
    samples = decoded(
        open_decoder(audio_form("linear32", 16_000), 16_000), [data]
    )  # the first bytes wait for container detection
    assert samples.dtype == np.int16
    assert len(samples) == len(data) // 4
    strange = np.array([np.nan, np.inf, -np.inf, 3e38, -1.0, 1.0, 0.5], "<f4")
    fed = open_decoder(audio_form("linear32", 16_000), 16_000).feed(strange.tobytes(), 1.0)
    assert fed[:, 0].tolist() == [0, 32_767, -32_768, 32_767, -32_768, 32_767, 16_384]


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
