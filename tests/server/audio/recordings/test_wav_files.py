"""WAV files, live and uploaded: streaming writers, RF64, chunks, concatenated and hostile files, every width."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections.abc import Iterator

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.recordings.ffmpeg_container import without_metadata
from server.errors import BadAudio, MediaError, NotTaken, Refused, Undecodable
from tests.support.audio.media_files import container, pieces, speech, streamed, uploaded

RATE = 16_000
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


def live(body: bytes, cuts: list[int]) -> np.ndarray:
    return streamed(pieces(body, cuts))


LISTED, WIDE = chunk(b"LIST", b"hello"), chunk(b"bext", bytes(602))
N = len(PCM) * 2
FILES: dict[str, tuple[bytes, int]] = {  # a file, and how often it contains PCM
    "size 0": (wav(size=0), 1),
    "size 2**32 - 1": (wav(size=0xFFFFFFFF), 1),
    "sox's size": (wav(size=0x7FFFF000), 1),
    "pocket-tts's size, twice": (wav(size=2_000_000_000) * 2, 2),
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


@pytest.mark.parametrize("cuts", [[], [44], [57, 58], [61, 62, 63]])
@pytest.mark.parametrize("between", [b"", b"\0", b"Q"])
@pytest.mark.parametrize("odd", [b"LIST", b"junk"])
def test_a_chunk_of_odd_size_is_padded_or_not(odd: bytes, between: bytes, cuts: list[int]) -> None:
    """Some writers leave the zero out, and some write another byte."""
    body = wav(before=odd + struct.pack("<I", 5) + b"INFOx" + between, after=LISTED)
    assert np.array_equal(uploaded(body)[0], PCM)
    assert np.array_equal(live(body, cuts), PCM)
    ffmpegs = adpcm(b"RIFF", (odd, 5, b"INFOx" + between))
    assert np.array_equal(uploaded(ffmpegs)[0], uploaded(adpcm(b"RIFF"))[0])


@pytest.mark.parametrize("bits", [8, 16, 24, 32, 64])
@pytest.mark.parametrize("named", [">HH", ">I", ""])
def test_big_endian_samples_are_those_of_the_little_endian_file(bits: int, named: str) -> None:
    """As sox -B writes them. `named`: the field of an extensible header that has the format."""
    kind, scale = ("f", 1 / 32_768) if bits == 64 else ("i", 2.0 ** (bits - 16))
    samples = (PCM[:, 0] * scale).astype(f">f{bits // 8}" if kind == "f" else ">i4").tobytes()
    if bits < 64:
        size = bits // 8
        samples = np.frombuffer(samples, np.uint8).reshape(-1, 4)[:, 4 - size :].tobytes()
        samples = bytes(byte ^ 0x80 for byte in samples) if bits == 8 else samples
    tag = 3 if kind == "f" else 1
    form = struct.pack(">HHIIHH", 0xFFFE if named else tag, 1, RATE, RATE * bits // 8, bits // 8, bits)
    if named:
        form += struct.pack(">HHI", 22, bits, 0) + struct.pack(named, *([tag, 0] if named == ">HH" else [tag]))
        form += SUBFORMAT[2:]
    parts = [(b"fmt ", form), (b"LIST", b"hello\0"), (b"data", samples)]
    body = b"WAVE" + b"".join(name + struct.pack(">I", len(part)) + part for name, part in parts)
    result, warnings = uploaded(b"RIFX" + struct.pack(">I", len(body)) + body)
    assert np.abs(result.astype(int) - PCM).max() <= (256 if bits == 8 else 0)
    assert warnings == []


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


@pytest.mark.parametrize(("bits", "size"), [(20, 3), (24, 4)])
def test_samples_may_use_more_bytes_than_they_need(bits: int, size: int) -> None:
    form = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, RATE, RATE * size, size, bits))
    samples = np.zeros((len(PCM), size), np.uint8)
    samples[:, -2:] = PCM.view(np.uint8).reshape(-1, 2)
    assert np.array_equal(uploaded(wav(samples.tobytes(), form=form))[0], PCM)


@pytest.mark.parametrize(
    ("data", "error", "named"),
    [
        (wav(b"", form=fmt(tag=17, bits=4)), NotTaken, "WAV format 17"),
        (wav(b"").replace(b"fmt ", b"fmtx"), Undecodable, "no fmt chunk"),
        (wav(magic=b"RIFX"), NotTaken, "RIFX"),
        (b"RIFF\0\0\0\0AVI LIST", Undecodable, "another kind of RIFF"),
        (b"RIFF\0\0\0\0WAVEfmt \2\0\0\0\1\0", Undecodable, "damaged"),
        (b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff", Undecodable, "damaged"),
        (b"RIFF\0\0\0\0WAVEJUNK\xff\xff\xff\xff", Undecodable, "no audio in"),
        (b"RIFF\0\0\0\0WAVE" + b"JUNK\0\0\0\0" * 5_000, Undecodable, "no audio in"),
    ],
)
def test_a_malformed_wav_stream_is_refused(data: bytes, error: type[MediaError], named: str) -> None:
    with pytest.raises(error, match=named):
        live(data, [])


# Every width and format tag is read to the right values, or refused by name; none raises anything else.

RAMP = np.arange(-32_768, 32_768, 13, dtype=np.int64)[:, None]  # (S, 1)
TAGS = (*range(0x80), 0xFF, 0x100, 0x160, 0x161, 0x2000, 0x2001, 0x4143, 0x566F, 0x6750, 0xA106, 0xF1AC, 0xFFFF)
WIDTHS = (0, 1, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 128)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_every_tag_of_wav_is_read_or_refused(bits: int, extensible: bool) -> None:
    for tag in TAGS:
        for channels in (1, 2, 9):
            body = wav(PCM.tobytes()[:4_000], form=fmt(tag, channels, RATE, bits, extensible=extensible))
            with contextlib.suppress(Refused):
                uploaded(body)
            with contextlib.suppress(MediaError):
                live(body, [])


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("tag", "bits", "dtype"), [(1, 16, "<i2"), (1, 32, "<i4"), (1, 64, "<i8"), (3, 32, "<f4"), (3, 64, "<f8")]
)
def test_samples_of_every_width_have_their_values(tag: int, bits: int, dtype: str, extensible: bool) -> None:
    samples = RAMP / 32_768 if tag == 3 else RAMP << (bits - 16)
    body = wav(samples.astype(dtype).tobytes(), form=fmt(tag, 1, RATE, bits, extensible=extensible))
    assert np.array_equal(uploaded(body)[0], RAMP)
    assert np.array_equal(live(body, []), RAMP)


def test_the_largest_sample_of_64_bits_is_clipped() -> None:
    body = wav(np.array([2**63 - 1, -(2**63), 0], "<i8").tobytes(), form=fmt(bits=64))
    assert uploaded(body)[0][:, 0].tolist() == [32_767, -32_768, 0]


@pytest.mark.parametrize("kind", ["wav", "w64", "aiff", "matroska", "mov", "ipod", "caf", "au"])
def test_every_codec_of_samples_in_a_file_is_read_or_refused(kind: str) -> None:
    for codec in sorted(name for name in av.codecs_available if name.startswith(("pcm_", "adpcm_"))):
        try:
            body = container(kind, codec, speech(RATE)[:4_000], RATE)
        except (av.FFmpegError, ValueError):
            continue  # FFmpeg writes no such file
        with contextlib.suppress(Refused):
            assert len(uploaded(body)[0]) >= 4_000, codec


def test_codecs_of_telephones_are_read_and_unlisted_ones_refused_by_name() -> None:
    for codec, rate in (("g726", 8_000), ("g722", 16_000), ("adpcm_ima_wav", 8_000)):
        assert len(uploaded(container("wav", codec, speech(rate), rate))[0]) >= 2 * RATE
    gsm = chunk(b"fmt ", struct.pack("<HHIIHHHH", 49, 1, 8_000, 1_625, 65, 0, 2, 320))
    assert uploaded(wav(bytes(65 * 3 + 1), form=gsm))[1] == []  # sox counts the padding as audio
    for codec in ("ac3", "eac3"):
        with pytest.raises(BadAudio, match=f"{codec}.* not supported"):
            uploaded(container("mp4", codec, speech(48_000, 2), 48_000))


# Metadata of impossible sizes is skipped in bounded time, also where FFmpeg reads it.

SIZES = (0, 0x7FFFFFF8, 0x80000000, 0xFFFFFFF0, 0xFFFFFFF4, 0xFFFFFFF8, 0xFFFFFFFC, 0xFFFFFFFF)
TAG = b"ID3\x04\0\0\0\0\0\x05hello"


def adpcm(magic: bytes, *chunks: tuple[bytes, int, bytes]) -> bytes:
    order = ">" if magic == b"RIFX" else "<"
    form = struct.pack(order + "HHIIHHHH", 0x11, 1, 8_000, 4_055, 256, 4, 2, 505)
    parts = [(b"fmt ", len(form), form), *chunks, (b"data", 512, bytes(512))]
    body = b"WAVE" + b"".join(name + struct.pack(order + "I", size) + data for name, size, data in parts)
    return magic + struct.pack(order + "I", len(body)) + body


def hostile() -> Iterator[bytes]:
    """Yield WAV files with entries of impossible sizes in their lists, and lists of impossible sizes."""
    for magic in (b"RIFF", b"RF64", b"RIFX"):
        for size in SIZES:
            for kind in (b"INFO", b"adtl", b"exif"):
                for entry in (b"ISFT", b"IXYZ", b"labl", b"ltxt", b"emnt"):
                    entries = kind + entry + struct.pack(">I" if magic == b"RIFX" else "<I", size) + b"\xff" * 60
                    yield adpcm(magic, (b"LIST", 0xFFFFFF00, entries))
                    yield TAG + adpcm(magic, (b"LIST", len(entries), entries))
            for name in (b"bext", b"cart", b"cue ", b"smpl", b"acid", b"PEAK", b"fact", b"zzzz"):
                yield adpcm(magic, (name, size, bytes(80)))


READ_ALL = """
import contextlib
from server.errors import Refused
from tests.server.audio.recordings.test_wav_files import hostile, uploaded
for body in hostile():
    with contextlib.suppress(Refused):
        uploaded(body)
"""


def test_metadata_of_impossible_sizes_is_skipped_at_once() -> None:
    """In a process of its own, because a library that loops cannot be interrupted."""
    subprocess.run([sys.executable, "-c", READ_ALL], check=True, timeout=120)


@pytest.mark.parametrize("magic", [b"RIFF", b"RIFX"])
def test_metadata_does_not_reach_ffmpeg(magic: bytes) -> None:
    """It allocates the size that a list announces."""
    note = b"INFOISFT\x04\0\0\0abcd"
    listed = adpcm(magic, (b"LIST", len(note), note))
    assert without_metadata(TAG + listed) == listed[:8] + adpcm(magic)[8:]
    for body in (b"", b"RIFF", b"fLaC" + bytes(20), TAG, b"RIFF\0\0\0\0AVI " + bytes(20), bytes(100)):
        assert without_metadata(body) == body
    announced = adpcm(b"RIFF", (b"LIST", 0x8000001A, note))
    assert len(without_metadata(announced)) < len(announced)
