"""Recordings of up to eight channels, whole and live: all samples of each channel, and a refusal of more channels."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest
import soundfile

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.pcm import PCM
from server.audio.recording import Recording
from server.errors import MediaError, Refused

RATE = 48_000
LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
LOW = {6: 3, 7: 3, 8: 3}
"""Index of the channel for low frequencies, which AAC and Opus filter, by the number of channels."""


def tones(channels: int) -> PCM:
    """Return a second of a tone in each channel, each louder than the one before; (S, C) int16."""
    time_s = np.arange(RATE) / RATE
    tone = np.sin(2 * np.pi * 200 * time_s)
    return np.rint(2_000 * np.outer(tone, np.arange(1, channels + 1))).astype(np.int16)


def aac(container: str, channels: int) -> bytes:
    """Return the tones as AAC, whose frames are planar floats."""
    written = io.BytesIO()
    with av.open(written, "w", format=container) as out:
        stream = out.add_stream("aac", rate=RATE)
        stream.layout = LAYOUTS[channels]
        samples = tones(channels)
        for start in range(0, RATE, 960):
            block = np.ascontiguousarray(samples[start : start + 960]).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(block, format="s16", layout=LAYOUTS[channels])
            frame.sample_rate, frame.pts = RATE, start
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return written.getvalue()


def written(form: str, subtype: str, channels: int) -> bytes:
    """Return the tones as a file that libsndfile writes."""
    file = io.BytesIO()
    soundfile.write(file, tones(channels) / 32_768, RATE, format=form, subtype=subtype)
    return file.getvalue()


def whole(body: bytes) -> PCM:
    recording = Recording(body, audio_form(None, None), rate=RATE, max_s=60.0)
    blocks = []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.concatenate(blocks)


def live(body: bytes, channels: int) -> PCM:
    decoder = open_decoder(audio_form(None, None, channels=channels), RATE, multichannel=channels > 1)
    samples = [decoder.feed(body[start : start + 5_000], float("inf")) for start in range(0, len(body), 5_000)]
    while decoder.holds:
        samples.append(decoder.feed(b"", float("inf")))
    return np.concatenate([*samples, decoder.flush(float("inf"))])


def levels(samples: PCM) -> np.ndarray:
    """Return the level of each channel in the middle, relative to that of the tones: about 1."""
    middle = samples[RATE // 4 : RATE // 2].astype(np.float64)
    return np.sqrt(np.square(middle).mean(axis=0)) / (2_000 / np.sqrt(2)) / np.arange(1, samples.shape[1] + 1)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("container", ["mp4", "adts", "matroska"])
def test_aac_keeps_its_channels(container: str, channels: int) -> None:
    body = aac(container, channels)
    for samples in (whole(body),) if container == "mp4" else (whole(body), live(body, channels)):
        assert samples.shape[1] == channels
        measured = np.delete(levels(samples), LOW.get(channels, [])) if channels in LOW else levels(samples)
        assert measured == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("channels", [1, 2, 6, 7, 8])
@pytest.mark.parametrize("subtype", ["VORBIS", "PCM_16", "DOUBLE"])
def test_vorbis_flac_and_wav_keep_their_channels(subtype: str, channels: int) -> None:
    """Vorbis has another order of six channels and more than FFmpeg, which sorts them."""
    body = written({"VORBIS": "OGG", "PCM_16": "FLAC", "DOUBLE": "WAV"}[subtype], subtype, channels)
    expected = 2_000 / np.sqrt(2) * np.arange(1, channels + 1)
    for samples in (whole(body),) if subtype == "DOUBLE" else (whole(body), live(body, channels)):
        measured = np.sort(levels(samples) * expected)
        assert measured == pytest.approx(expected, rel=0.25 if subtype == "VORBIS" else 0.01)


@pytest.mark.parametrize("channels", [9, 12, 25])
@pytest.mark.parametrize(
    ("form", "subtype"), [("OGG", "VORBIS"), ("OGG", "OPUS"), ("WAV", "PCM_16"), ("CAF", "DOUBLE")]
)
def test_more_channels_are_refused_by_number(form: str, subtype: str, channels: int) -> None:
    body = written(form, subtype, channels)
    with pytest.raises(Refused, match=rf"{channels} channels.* are not supported; send .* 8"):
        whole(body)
    if form != "CAF":
        with pytest.raises(MediaError, match=rf"{channels} channels"):
            live(body, 1)


def test_a_header_with_another_number_of_channels_is_refused() -> None:
    body = bytearray(written("OGG", "VORBIS", 1))
    body[body.index(b"\x01vorbis") + 11] = 25
    with pytest.raises(Refused):
        whole(bytes(body))
    with pytest.raises(MediaError):
        live(bytes(body), 1)


def test_integers_of_64_bits_are_read() -> None:
    data = (tones(1).astype(np.int64) << 48).tobytes()
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + len(data),
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        RATE,
        RATE * 8,
        8,
        64,
        b"data",
        len(data),
    )
    assert np.array_equal(whole(head + data)[:, 0], tones(1)[:, 0])
