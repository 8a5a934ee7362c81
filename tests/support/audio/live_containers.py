"""Builders of live containers, with headers of any size and as recorders write them."""

from __future__ import annotations

import struct

import numpy as np

from tests.support.audio.media_files import container, opus_packets, speech
from tutti_asr_lab.trials.hostile.containers import element

UNKNOWN = (1 << 56) - 1  # the size of an element that a live recorder leaves open
UNKNOWN_WAV = 0xFFFFFFFF
VIDEO_BLOCK_BYTES = 5_000


def wav(
    seconds: float,
    *,
    rate: int = 16_000,
    channels: int = 1,
    bits: int = 16,
    tag: int = 1,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """Return a WAV file of noise; `before` and `after` are complete chunks around its samples."""
    frame = channels * bits // 8
    body = _samples(round(seconds * rate) * channels, bits, tag)
    size = len(body) if after else UNKNOWN_WAV
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, channels, rate, rate * frame, frame, bits)
    return b"RIFF\xff\xff\xff\xffWAVE" + form + before + struct.pack("<4sI", b"data", size) + body + after


def chunk(name: bytes, size: int) -> bytes:
    """Return a RIFF chunk of zeros."""
    return struct.pack("<4sI", name, size) + bytes(size + size % 2)


def flac_with_picture(size: int, seconds: float = 2.0) -> bytes:
    """Return FLAC with a cover picture of `size` bytes, in as many blocks as needed."""
    file = container("flac", "flac", _speech(seconds, 16_000), 16_000)
    first = file[4:42]  # after the signature: the stream's header
    block = bytes([0x06]) + size.to_bytes(3, "big") + bytes(size)  # picture; a block of less than 16 MiB
    rest = file[42:]
    while not rest[0] & 0x80:
        rest = rest[4 + int.from_bytes(rest[1:4], "big") :]
    return b"fLaC" + bytes([first[0] & 0x7F]) + first[1:] + block + rest


def ogg_with_tags(size: int, seconds: float = 2.0) -> bytes:
    """Return Ogg Opus whose tags contain a cover picture of `size` bytes."""
    head = b"OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0"
    pages = [_page(head, flags=2)]
    tags = b"OpusTags" + bytes(size)
    whole, flags = len(tags) - len(tags) % (255 * 255), 0
    for at in range(0, whole, 255 * 255):
        pages.append(_page(tags[at : at + 255 * 255], flags=flags, ends=False))
        flags = 1
    pages.append(_page(tags[whole:], flags=flags))
    pages += [_page(packet) for packet in opus_packets(_speech(seconds, 48_000))]
    return b"".join(pages)


def webm_pcm(seconds: float, rate: int = 48_000, channels: int = 1, void: int = 0) -> bytes:
    """Return WebM with float samples in blocks of 60 ms, as Chrome does for `codecs=pcm`; `void`: bytes of header."""
    samples = _samples(round(seconds * rate) * channels, 32, 3)
    block = rate * channels * 4 * 60 // 1_000
    audio = element(0xB5, struct.pack(">f", rate)) + element(0x9F, bytes([channels])) + element(0x6264, b"\x20")
    blocks = [samples[at : at + block] for at in range(0, len(samples), block)]
    return _webm(b"A_PCM/FLOAT/IEEE", audio, void) + b"".join(element(0xA3, b"\x81\0\0\x80" + each) for each in blocks)


def webm_with_video(seconds: float, bits_per_s: int = 1_000_000, void: int = 0) -> bytes:
    """Return WebM with Opus and a video track of this bit rate, as recorded for `video/webm`."""
    parts, spent, between = [_webm(b"A_OPUS", b"", void)], 0.0, bits_per_s / 8 * 0.02
    for packet in opus_packets(_speech(seconds, 48_000)):
        parts.append(element(0xA3, b"\x81\0\0\x80" + packet))
        spent += between
        while spent >= VIDEO_BLOCK_BYTES:
            parts.append(element(0xA3, b"\x82\0\0\x80" + bytes(VIDEO_BLOCK_BYTES - 4)))
            spent -= VIDEO_BLOCK_BYTES
    return b"".join(parts)


def video_alone(size: int) -> bytes:
    """Return blocks of the video track, for the end of `webm_with_video`."""
    return element(0xA3, b"\x82\0\0\x80" + bytes(VIDEO_BLOCK_BYTES - 4)) * (size // VIDEO_BLOCK_BYTES)


def _webm(codec: bytes, audio: bytes, void: int) -> bytes:
    sound = (
        element(0xD7, b"\1") + element(0x83, b"\2") + element(0x86, codec) + (element(0xE1, audio) if audio else b"")
    )
    video = element(0xD7, b"\2") + element(0x83, b"\1") + element(0x86, b"V_VP8")
    begins = element(0x1A45DFA3, b"") + element(0x18538067, b"", UNKNOWN)
    tracks = element(0x1654AE6B, element(0xAE, video) + element(0xAE, sound))
    return begins + (element(0xEC, bytes(void)) if void else b"") + tracks + element(0x1F43B675, b"", UNKNOWN)


def _page(body: bytes, flags: int = 0, *, ends: bool = True) -> bytes:
    lengths = bytes([255]) * (len(body) // 255) + (bytes([len(body) % 255]) if ends else b"")
    return b"OggS\0" + bytes([flags]) + struct.pack("<qIIIB", 0, 1, 0, 0, len(lengths)) + lengths + body


def _speech(seconds: float, rate: int) -> np.ndarray:
    return np.resize(speech(rate), (round(seconds * rate), 1))


def _samples(count: int, bits: int, tag: int) -> bytes:
    rng, size = np.random.default_rng(5), bits // 8
    return rng.uniform(-0.1, 0.1, count).astype(f"<f{size}").tobytes() if tag == 3 else rng.bytes(count * size)
