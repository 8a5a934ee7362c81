"""Broken audio containers, and recordings that cost much: wrong, endless or empty headers, damage, tiny packets."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

OPUS_HEAD = b"OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0"
OPEN = (1 << 56) - 1  # EBML element of unknown size
MARKS = (b"\xff", b"#!AMR\n", b"fLaC\0\0\0\x22", b"OggS", b"RIFF\0\0\0\0WAVE", b"ID3\4\0\0\0\0\0\0", b"\xff\xfb\x90\0")
SIZES = (0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 100_000)


def broken(file: bytes, audio: bytes, rng: random.Random) -> bytes:
    """Return a broken container; `file` is a whole FLAC recording, `audio` has samples."""
    built = rng.choice(_KINDS)(file, audio[: rng.choice((0, 2, 3_200, 64_000))], rng)
    way = rng.randrange(4)
    if way == 0:
        return built[: rng.randrange(len(built) + 1)]
    whole = bytearray(built)
    for _ in range(rng.randint(1, 20) if way == 1 else 0):
        whole[rng.randrange(min(len(whole), 400))] = rng.randrange(256)
    if way == 2:
        at = rng.randrange(len(whole))
        whole[at:at] = rng.randbytes(rng.randint(1, 5_000))
    return bytes(whole)


def _wav(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    channels, bits = rng.choice((0, 1, 2, 255)), rng.choice((0, 8, 16, 32, 64))
    form = struct.pack(
        "<HHIIHH", rng.choice((1, 3, 6, 7, 85, 0xFFFE)), channels, rng.choice((0, 16_000, 2**31)), 1, 1, bits
    )
    extra = rng.choice((b"", b"LIST" + struct.pack("<I", rng.choice(SIZES)) + bytes(50), b"JUNK\0\0\0\0" * 2_000))
    data = b"data" + struct.pack("<I", rng.choice(SIZES)) + audio
    riff = rng.choice((b"RIFF", b"RF64", b"RIFX")) + struct.pack("<I", rng.choice(SIZES)) + b"WAVE"
    return riff + b"fmt " + struct.pack("<I", rng.choice((16, 16, 16, 0, 2**31))) + form + extra + data


def _flac(file: bytes, audio: bytes, rng: random.Random) -> bytes:
    cover = b"\x06" + rng.choice(((2**24 - 1), 100_000, 3)).to_bytes(3, "big") + bytes(rng.choice((3, 100_000)))
    return rng.choice((file[:4] + cover + file[4:], file[:42] + audio, file[:42] + cover, file))


def _ogg(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    pages = [_page(OPUS_HEAD, 2), _page(b"OpusTags" + bytes(8), 0)]
    for _ in range(rng.randint(1, 300)):
        packet = rng.choice((b"", b"\xfb\x06", b"\xfc\xff\xfe", audio[:200], rng.randbytes(60)))
        pages.append(_page(packet, rng.choice((0, 0, 0, 1, 2, 4))))
    return b"".join(pages)


def _webm(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    kind = rng.choice((b"A_OPUS", b"A_PCM/FLOAT/IEEE", b"A_VORBIS", b"V_VP8"))
    entry = element(0xD7, b"\1") + element(0x83, rng.choice((b"\1", b"\2"))) + element(0x86, kind)
    entry += element(0xE1, element(0xB5, rng.choice((struct.pack(">f", 48_000), b"", struct.pack(">f", float("nan"))))))
    parts = [element(0x1A45DFA3, b""), element(0x18538067, b"", OPEN), element(0x1654AE6B, element(0xAE, entry))]
    parts.append(element(0xEC, bytes(100), rng.choice((100, 2**40))))
    for _ in range(rng.randint(1, 300)):
        block = rng.choice((b"\x81\0\0\x80", b"\x82\0\0\x80", b"\x81\0\0\x86", b"\x81"))
        parts.append(element(0xA3, block + rng.choice((b"", b"\xfb\x06", audio[:960]))))
    return b"".join(parts)


_KINDS: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (_wav, _flac, _ogg, _webm)


def _page(packet: bytes, flags: int) -> bytes:
    return ogg_page([packet], flags)


def ogg_page(packets: Sequence[bytes], flags: int) -> bytes:
    """Return an Ogg page with whole packets, and no checksum."""
    lengths = b"".join([bytes([255] * (len(packet) // 255) + [len(packet) % 255]) for packet in packets])
    head = b"OggS\0" + bytes([flags]) + struct.pack("<qIIIB", 0, 1, 0, 0, len(lengths))
    return head + lengths + b"".join(packets)


def element(name: int, body: bytes, size: int | None = None) -> bytes:
    """Return an EBML element with a size field of eight bytes, which holds `size` if it is given."""
    identifier = name.to_bytes((name.bit_length() + 7) // 8, "big")
    return identifier + ((1 << 56) | (len(body) if size is None else size)).to_bytes(8, "big") + body


def hostile_body(file: bytes, audio: bytes, rng: random.Random) -> bytes:
    """Return a recording that is long to search, to open or to decode."""
    return rng.choice((_marks, _eight_channels, _adpcm, _bomb, _mutated, broken))(file, audio, rng)


def _marks(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    return rng.choice(MARKS) * rng.choice((1_000, 20_000))


def _eight_channels(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    bits, channels = rng.choice((16, 32, 64)), rng.choice((8, 9, 255))
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", rng.choice((1, 3)), channels, 48_000, 48_000 * frame, frame, bits)
    return _riff(form, audio[: 100 * frame])


def _adpcm(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    """Return an ADPCM WAV whose blocks, coefficients or chunks are not what it says."""
    form = struct.pack(
        "<HHIIHH", rng.choice((2, 17)), rng.choice((1, 2)), 16_000, 8_000, rng.choice((1, 256, 65_535)), 4
    )
    form += struct.pack("<HHH", rng.choice((4, 32)), rng.choice((0, 500, 65_535)), rng.choice((0, 7, 65_535)))
    lying = b"LIST" + struct.pack("<I", rng.choice((0, 3, 50, 2**31 - 1, 2**32 - 1))) + audio[:50]
    return _riff(form, audio[:20_000], lying * rng.choice((1, 500)))


def _bomb(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    """Return Opus packets of 120 ms in a byte or two each: an hour in 60 kB."""
    pages = [ogg_page([b"\xfb\x06"] * 120, 0) for _ in range(rng.choice((10, 250)))]
    return b"".join([ogg_page([OPUS_HEAD], 2), ogg_page([b"OpusTags" + bytes(8)], 0), *pages])


def _mutated(file: bytes, audio: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    body = bytearray(file)
    for _ in range(rng.randint(1, 30)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body)


def _riff(form: bytes, data: bytes, extra: bytes = b"") -> bytes:
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + extra + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks
