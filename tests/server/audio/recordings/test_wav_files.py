"""WAV files with all kinds of headers, live and uploaded: streaming writers, RF64, chunks, concatenated files."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording
from server.errors import BadAudio, Undecodable
from tests.support.audio.media_files import decoded, pieces, speech

RATE = 16_000
ANY = audio_form(None, None)
PCM = speech()[:4_000]
SUBFORMAT = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(body) if size is None else size) + body + bytes(len(body) % 2)


def fmt(tag: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16, *, extensible: bool = False) -> bytes:
    frame = channels * bits // 8
    body = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, rate * frame, frame, bits)
    extra = struct.pack("<HHI", 22, bits, 0) + struct.pack("<H", tag) + SUBFORMAT if extensible else b""
    return chunk(b"fmt ", body + extra)


def wav(
    samples: bytes = PCM.tobytes(),
    *,
    size: int | None = None,
    magic: bytes = b"RIFF",
    before: bytes = b"",
    after: bytes = b"",
    form: bytes | None = None,
) -> bytes:
    body = b"WAVE" + before + (form or fmt()) + chunk(b"data", samples, size) + after
    return magic + struct.pack("<I", len(body)) + body


def ds64(size: int) -> bytes:
    return chunk(b"ds64", struct.pack("<QQQI", size + 72, size, size // 2, 0))


def uploaded(body: bytes) -> tuple[np.ndarray, list[str]]:
    recording, blocks = Recording(body, ANY, rate=RATE, max_s=600.0), []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.concatenate(blocks), recording.warnings


def live(body: bytes, cuts: list[int]) -> np.ndarray:
    return decoded(open_decoder(ANY, RATE), pieces(body, cuts))


LISTED, WIDE = chunk(b"LIST", b"hello"), chunk(b"bext", bytes(602))
N = len(PCM) * 2
FILES: dict[str, tuple[bytes, int]] = {  # a file, and how often it contains PCM
    "size 0": (wav(size=0), 1),
    "size 2**32 - 1": (wav(size=0xFFFFFFFF), 1),
    "sox's size": (wav(size=0x7FFFF000), 1),
    "arecord's size": (wav(size=0x80000000), 1),
    "RF64": (wav(size=0xFFFFFFFF, magic=b"RF64", before=ds64(N), after=LISTED), 1),
    "BW64": (wav(size=0xFFFFFFFF, magic=b"BW64", before=ds64(N) + WIDE, after=chunk(b"axml", b"<x/>")), 1),
    "RF64 of a writer that could not seek": (wav(size=0xFFFFFFFF, magic=b"RF64", before=ds64(0)), 1),
    "RF64 with its size in the data chunk": (wav(magic=b"RF64", before=ds64(N)), 1),
    "extensible": (wav(form=fmt(extensible=True)), 1),
    "extensible, size 0": (wav(form=fmt(extensible=True), size=0), 1),
    "chunks before and after": (wav(before=LISTED + WIDE + chunk(b"junk", bytes(31)), after=WIDE + LISTED), 1),
    "a large chunk before": (wav(before=chunk(b"JUNK", bytes(200_000))), 1),
    "an unknown chunk after": (wav(after=chunk(b"Xtra", b"RIFFxxxx")), 1),
    "two files": (wav() + wav(), 2),
    "three files of unknown size": (wav(size=0) + wav(size=0xFFFFFFFF) + wav(size=0), 3),
    "files with chunks": (wav(after=LISTED) + wav(before=WIDE, after=LISTED), 2),
    "RF64 after RIFF": (wav() + wav(size=0xFFFFFFFF, magic=b"RF64", before=ds64(N)), 2),
    "two data chunks": (wav(after=chunk(b"data", PCM.tobytes())), 2),
    "padding after": (wav() + bytes(512), 1),
    "an ID3v1 tag between files": (wav() + b"TAG" + bytes(125) + wav(), 2),
}
WITHOUT_SAMPLES = wav(b"", after=LISTED)


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 30_000), max_size=8))
def test_every_wav_is_decoded_live_as_in_an_upload(name: str, cuts: list[int]) -> None:
    body, times = FILES[name]
    expected = np.concatenate([PCM] * times)
    assert np.array_equal(uploaded(body)[0], expected)
    assert np.array_equal(live(body, cuts), expected)


def test_a_wav_is_decoded_byte_by_byte() -> None:
    for body, times in [*FILES.values(), (WITHOUT_SAMPLES, 0)]:
        if len(body) < 30_000:
            assert len(live(body, list(range(len(body))))) == times * len(PCM)


def test_a_wav_without_samples_is_refused_as_an_upload() -> None:
    for body, problem in ((WITHOUT_SAMPLES, "$"), (wav()[:-N], "; truncated: the WAV header announces")):
        with pytest.raises(BadAudio, match=f"^the recording has no audio{problem}"):
            uploaded(body)


def test_samples_of_odd_size_are_padded_or_not() -> None:
    odd = fmt(tag=7, bits=8)
    codes = bytes(range(1, 102))
    for body in (wav(codes, form=odd) + wav(codes, form=odd), wav(codes, form=odd)[:-1] + wav(codes, form=odd)):
        assert len(uploaded(body)[0]) == len(live(body, [30, 60])) == 202


def test_files_with_different_rates_and_channels_are_all_decoded() -> None:
    stereo = wav(speech(48_000, 2)[:48_000].tobytes(), form=fmt(channels=2, rate=48_000))
    body = wav() + stereo + wav()
    samples, again = uploaded(body)[0], live(body, [100, 9_000])
    assert len(samples) == len(again) == 2 * len(PCM) + RATE
    assert np.abs(samples.astype(int) - again).max() <= 1  # mixed before or after resampling
    assert len(uploaded(stereo + wav())[0]) == RATE + len(PCM)


@pytest.mark.parametrize("missing", [1, 100, 7_000])
def test_a_truncated_wav_is_decoded_with_a_warning(missing: int) -> None:
    samples, warnings = uploaded(wav()[:-missing])
    assert np.array_equal(samples, PCM[: len(samples)])
    assert len(samples) == (N - missing) // 2
    assert warnings == [f"truncated: the WAV header announces {N} bytes of samples, but there are {N - missing}"]
    assert uploaded(wav())[1] == uploaded(wav(size=0))[1] == []


def test_a_truncated_file_after_complete_ones_is_reported() -> None:
    assert uploaded(wav() + wav()[:-10])[1][0].startswith("truncated")
    assert uploaded(wav() + wav()[:30])[1] == ["truncated: the WAV ends before its samples"]
    with pytest.raises(BadAudio, match="before its samples"):
        uploaded(wav()[:30])


def test_samples_beyond_the_announced_ones_are_refused_and_never_dropped_silently() -> None:
    body = wav(size=1_000) + np.random.default_rng(1).integers(-3_000, 3_000, 100_000, np.int16).tobytes()
    with pytest.raises(BadAudio, match="announces 1000 bytes"):
        uploaded(body)
    with pytest.raises(Undecodable):
        live(body, [])
    assert uploaded(wav() + bytes(512))[1] == ["skipped: 512 bytes after the samples of the WAV are not audio"]


def test_20_bit_samples_use_three_bytes() -> None:
    form = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, RATE, RATE * 3, 3, 20))
    samples = np.zeros((len(PCM), 3), np.uint8)
    samples[:, 1:] = PCM.view(np.uint8).reshape(-1, 2)
    assert np.array_equal(uploaded(wav(samples.tobytes(), form=form))[0], PCM)
