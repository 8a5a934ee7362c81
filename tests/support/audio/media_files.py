"""A shipped sample in every format that clients send, and comparison of decoded samples."""

from __future__ import annotations

import io
import itertools
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import soundfile
import soxr

from server.audio.containers.flac import crc8, crc16
from server.audio.decoder import open_decoder
from server.audio.formats import AudioForm, audio_form
from server.audio.recordings.recording import Recording
from tests.support.needs import need_package

av = need_package("av")

ANY = audio_form(None, None)
SAMPLES = Path(__file__).parents[3] / "model" / "samples"
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "200000"}
"""Options for MP4 as written by Safari's MediaRecorder, with a fragment every 0.2 s."""
PLAIN_MP3 = {"write_xing": "0", "id3v2_version": "0"}
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 7: "6.1", 8: "7.1"}


@cache
def speech(rate: int = 16_000, channels: int = 1) -> np.ndarray:
    """Two seconds of a shipped sample, (S, C) int16; the channels differ in level."""
    samples, source_rate = soundfile.read(SAMPLES / "order.flac", dtype="float32", frames=32_000)
    levels = np.linspace(1.0, 0.5, channels)
    wanted = soxr.resample(samples, source_rate, rate)[:, None] * levels  # (S, C)
    return np.clip(np.rint(wanted * 32_768), -32_768, 32_767).astype(np.int16)


class Pipe(io.BytesIO):
    """A file whose writer cannot go back to its header."""

    def seekable(self) -> bool:
        return False


def container(
    kind: str,
    codec: str,
    pcm: np.ndarray,
    rate: int,
    *,
    options: dict[str, str] | None = None,
    file: io.BytesIO | Path | None = None,
    tracks: int = 1,
    **context: object,
) -> bytes:
    """Return samples, (S, C) int16, as a file; of several tracks those after the first are silent."""
    file = file or io.BytesIO()
    layout = LAYOUTS[pcm.shape[1]]
    with av.open(str(file) if isinstance(file, Path) else file, "w", format=kind, options=options or {}) as output:
        streams = [output.add_stream(codec, rate=rate) for _ in range(tracks)]
        for stream in streams:
            stream.codec_context.layout = layout
            for name, value in context.items():
                setattr(stream.codec_context, name, value)
        for stream in streams:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm).reshape(1, -1), "s16", layout)
            frame.sample_rate, frame.pts = rate, 0
            output.mux([*stream.encode(frame), *stream.encode(None)])
            pcm = np.zeros_like(pcm)
    return file.read_bytes() if isinstance(file, Path) else file.getvalue()


def by_ffmpeg(kind: str, codec: str, rate: int, channels: int, **options: str) -> bytes:
    """Return a sample as a file of these FFmpeg muxer and codec, written with these options."""
    return container(kind, codec, speech(rate, channels), rate, options=options)


def by_libsndfile(kind: str, codec: str, rate: int, channels: int) -> bytes:
    """Return a sample as a file of these libsndfile format and subtype."""
    return sound_file(kind, codec, speech(rate, channels), rate)


def index_first(codec: str, rate: int, channels: int) -> bytes:
    """Return an unfragmented MP4 file that begins with its index; FFmpeg can write it only to a path."""
    with tempfile.TemporaryDirectory() as folder:
        path, options = Path(folder) / "first.mp4", {"movflags": "faststart"}
        return container("mp4", codec, speech(rate, channels), rate, options=options, file=path)


def muxed(kind: str, packets: dict[int, bytes]) -> bytes:
    """Return Opus packets of 20 ms in a container, by position in time; positions without a packet are gaps (DTX)."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as output:
        stream = output.add_stream("libopus", rate=48_000)
        stream.codec_context.layout = "mono"
        stream.codec_context.open()
        for place, data in packets.items():
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.time_base = stream, place * 960, Fraction(1, 48_000)
            output.mux(packet)
    return file.getvalue()


def sound_file(kind: str, codec: str, pcm: np.ndarray, rate: int) -> bytes:
    """Return samples, (S, C) int16, as a file by libsndfile: FFmpeg's own Vorbis encoder is experimental."""
    file = io.BytesIO()
    soundfile.write(file, pcm, rate, format=kind, subtype=codec)
    return file.getvalue()


def opus_packets(pcm: np.ndarray, rate: int = 48_000, frame_ms: int = 20, **options: str) -> list[bytes]:
    """Return samples, (S, C) int16, as raw Opus packets."""
    encoder = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.layout, encoder.format = rate, LAYOUTS[pcm.shape[1]], "s16"
    encoder.options = {"frame_duration": str(frame_ms), **options}
    encoder.open()
    size = rate * frame_ms // 1_000
    packets = []
    for start in range(0, len(pcm) - size + 1, size):
        block = np.ascontiguousarray(pcm[start : start + size]).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(block, "s16", LAYOUTS[pcm.shape[1]])
        frame.sample_rate, frame.pts = rate, start
        packets += [bytes(packet) for packet in encoder.encode(frame)]
    return packets


def flac_head(block: int = 65_535, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return the header of a 16-bit FLAC stream."""
    bits = rate << 44 | (channels - 1) << 41 | 15 << 36
    info = struct.pack(">HH", block, block) + bytes(6) + bits.to_bytes(8, "big") + bytes(16)
    return b"fLaC" + b"\x80\0\0\x22" + info


def flac_silence(number: int, channels: int = 1) -> bytes:
    """Return a frame of four seconds of silence: 14 bytes, and three more for each further channel."""
    coded = bytes([number]) if number < 128 else bytes([0xC0 | number >> 6, 0x80 | number & 63])
    head = b"\xff\xf8\x70" + bytes([(channels - 1) << 4]) + coded + struct.pack(">H", 65_534)
    frame = head + bytes([crc8(head)]) + b"\0\0\0" * channels
    return frame + struct.pack(">H", crc16(frame))


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Return `data` split at these offsets, modulo its size."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def decoded(decoder: object, chunks: Sequence[bytes], limit_s: float = 1e9) -> np.ndarray:
    """Return all samples decoded from the chunks, (S, C) int16."""
    return np.concatenate([*(decoder.feed(chunk, limit_s) for chunk in chunks), decoder.flush()])


def likeness(ours: np.ndarray, original: np.ndarray, max_shift: int = 800) -> tuple[float, int]:
    """Return the highest correlation of two mono signals over shifts, and the shift in samples (late: positive)."""
    size = 2 * max(len(ours), len(original))
    a, b = np.fft.rfft(ours.astype(np.float64), size), np.fft.rfft(original.astype(np.float64), size)
    scores = np.fft.irfft(a * b.conj(), size) / (np.linalg.norm(ours.astype(float)) * np.linalg.norm(original) + 1e-9)
    near = np.concatenate([scores[-max_shift:], scores[: max_shift + 1]])
    return float(near.max()), int(near.argmax()) - max_shift


def uploaded(
    body: bytes, form: AudioForm = ANY, *, rate: int = 16_000, max_s: float = 1e5, **clock: Callable[[], float]
) -> tuple[np.ndarray, list[str]]:
    """Return all samples of an upload, (S, C) int16, and its warnings."""
    recording, blocks = Recording(body, form, rate=rate, max_s=max_s, **clock), []
    while (block := recording.next_block()) is not None:
        blocks.append(block)
    return np.concatenate(blocks), recording.warnings


def mixed(body: bytes) -> tuple[np.ndarray, list[str]]:
    """Return the samples of an upload, mixed as in a session, and the warnings."""
    samples, warnings = uploaded(body)
    return np.rint(samples.mean(axis=1)), warnings


def streamed(chunks: Sequence[bytes], form: AudioForm = ANY, *, rate: int = 16_000) -> np.ndarray:
    """Return all samples of a live stream, mixed to one channel unless the form is raw, (S, C) int16."""
    return decoded(open_decoder(form, rate), chunks)
