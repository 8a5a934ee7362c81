"""Every width and format tag of samples is read, to the right values, or refused by name; none raises anything else."""

from __future__ import annotations

import contextlib
import struct

import av
import numpy as np
import pytest

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.pcm import PCM
from server.audio.recordings.recording import Recording
from server.errors import BadAudio, MediaError, Refused
from tests.support.audio.media_files import container, decoded, speech

ANY, RATE = audio_form(None, None), 16_000
RAMP = np.arange(-32_768, 32_768, 13, dtype=np.int64)[:, None]  # (S, 1)
NOISE = np.random.default_rng(1).integers(-3_000, 3_000, 2_000).astype("<i2").tobytes()
SUBFORMAT = bytes.fromhex("000000001000800000aa00389b71")  # of WAVE_FORMAT_EXTENSIBLE, after the tag
TAGS = (*range(0x80), 0xFF, 0x100, 0x160, 0x161, 0x2000, 0x2001, 0x4143, 0x566F, 0x6750, 0xA106, 0xF1AC, 0xFFFF)
WIDTHS = (0, 1, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 128)


def wav(tag: int, bits: int, channels: int, data: bytes = NOISE, *, extensible: bool = False) -> bytes:
    align = channels * ((bits + 7) // 8)
    form = struct.pack(
        "<HHIIHH", 0xFFFE if extensible else tag, channels, RATE, RATE * align, align & 0xFFFF, bits & 0xFFFF
    )
    form += struct.pack("<HHIH", 22, bits, 0, tag) + SUBFORMAT if extensible else b""
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def uploaded(body: bytes) -> PCM:
    recording = Recording(body, ANY, rate=RATE, max_s=60.0)
    blocks = []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.concatenate(blocks)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_every_tag_of_wav_is_read_or_refused(bits: int, extensible: bool) -> None:
    for tag in TAGS:
        for channels in (1, 2, 9):
            body = wav(tag, bits, channels, extensible=extensible)
            with contextlib.suppress(Refused):
                uploaded(body)
            with contextlib.suppress(MediaError):
                decoded(open_decoder(ANY, RATE), [body])


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("tag", "bits", "dtype"), [(1, 16, "<i2"), (1, 32, "<i4"), (1, 64, "<i8"), (3, 32, "<f4"), (3, 64, "<f8")]
)
def test_samples_of_every_width_have_their_values(tag: int, bits: int, dtype: str, extensible: bool) -> None:
    samples = RAMP / 32_768 if tag == 3 else RAMP << (bits - 16)
    body = wav(tag, bits, 1, samples.astype(dtype).tobytes(), extensible=extensible)
    assert np.array_equal(uploaded(body), RAMP)
    assert np.array_equal(decoded(open_decoder(ANY, RATE), [body]), RAMP)


def test_the_largest_sample_of_64_bits_is_clipped() -> None:
    body = wav(1, 64, 1, np.array([2**63 - 1, -(2**63), 0], "<i8").tobytes())
    assert uploaded(body)[:, 0].tolist() == [32_767, -32_768, 0]


@pytest.mark.parametrize("kind", ["wav", "w64", "aiff", "matroska", "mov", "ipod", "caf", "au"])
def test_every_codec_of_samples_in_a_file_is_read_or_refused(kind: str) -> None:
    for codec in sorted(name for name in av.codecs_available if name.startswith(("pcm_", "adpcm_"))):
        try:
            body = container(kind, codec, speech(RATE)[:4_000], RATE)
        except (av.FFmpegError, ValueError):
            continue  # FFmpeg writes no such file
        with contextlib.suppress(Refused):
            assert len(uploaded(body)) >= 4_000, codec


@pytest.mark.parametrize("codec", ["ac3", "eac3"])
def test_a_codec_that_is_not_listed_is_refused_by_name(codec: str) -> None:
    with pytest.raises(BadAudio, match=f"{codec}.* not supported"):
        uploaded(container("mp4", codec, speech(48_000, 2), 48_000))


@pytest.mark.parametrize(("codec", "rate"), [("g726", 8_000), ("g722", 16_000), ("adpcm_ima_wav", 8_000)])
def test_telephone_codecs_in_wav_are_read(codec: str, rate: int) -> None:
    assert len(uploaded(container("wav", codec, speech(rate), rate))) >= 2 * RATE
