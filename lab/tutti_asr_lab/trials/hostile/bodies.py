"""Hostile recordings as bodies of uploads: long to search, to open or to decode; and bodies that hardly arrive."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable

from tutti_asr_lab.trials.hostile.containers import OPUS_HEAD, broken, ogg_page
from tutti_asr_lab.trials.hostile.handshakes import SLOW_S
from tutti_asr_lab.trials.hostile.raw_connection import Target

MARKS = (b"\xff", b"#!AMR\n", b"fLaC\0\0\0\x22", b"OggS", b"RIFF\0\0\0\0WAVE", b"ID3\4\0\0\0\0\0\0", b"\xff\xfb\x90\0")
DRIBBLED_PARTS = 40


async def uploaded_body(target: Target, rng: random.Random) -> None:
    """Upload a hostile recording, and wait for the answer or leave."""
    body = rng.choice(KINDS)(target, rng)
    async with target.dial() as line:
        if await line.send(_head(target, len(body)) + body) and rng.random() < 0.8:
            await line.answer()
        elif rng.random() < 0.5:
            line.reset()


async def dribbled_body(target: Target, rng: random.Random) -> None:
    """Send a body a few bytes at a time, then leave."""
    async with target.dial() as line:
        await line.send(_head(target, rng.choice((len(target.file), 10_000_000))))
        for at in range(rng.randint(1, DRIBBLED_PARTS)):
            if not await line.send(target.file[at * 9 : at * 9 + rng.randint(1, 9)], messages=0):
                break
            await asyncio.sleep(SLOW_S)
        if rng.random() < 0.5:
            line.reset()


def _head(target: Target, size: int) -> bytes:
    head = f"POST /v1/listen HTTP/1.1\r\nHost: x\r\nAuthorization: Token {target.key}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode()


def _marks(target: Target, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    return rng.choice(MARKS) * rng.choice((1_000, 20_000))


def _eight_channels(target: Target, rng: random.Random) -> bytes:
    bits, channels = rng.choice((16, 32, 64)), rng.choice((8, 9, 255))
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", rng.choice((1, 3)), channels, 48_000, 48_000 * frame, frame, bits)
    return _wav(form, target.audio[: 100 * frame])


def _adpcm(target: Target, rng: random.Random) -> bytes:
    """Return an ADPCM WAV whose blocks, coefficients or chunks are not what it says."""
    form = struct.pack(
        "<HHIIHH", rng.choice((2, 17)), rng.choice((1, 2)), 16_000, 8_000, rng.choice((1, 256, 65_535)), 4
    )
    form += struct.pack("<HHH", rng.choice((4, 32)), rng.choice((0, 500, 65_535)), rng.choice((0, 7, 65_535)))
    lying = b"LIST" + struct.pack("<I", rng.choice((0, 3, 50, 2**31 - 1, 2**32 - 1))) + target.audio[:50]
    return _wav(form, target.audio[:20_000], lying * rng.choice((1, 500)))


def _bomb(target: Target, rng: random.Random) -> bytes:  # noqa: ARG001 - common signature
    """Return Opus packets of 120 ms in a byte or two each: an hour in 60 kB."""
    pages = [ogg_page([b"\xfb\x06"] * 120, 0) for _ in range(rng.choice((10, 250)))]
    return b"".join([ogg_page([OPUS_HEAD], 2), ogg_page([b"OpusTags" + bytes(8)], 0), *pages])


def _mutated(target: Target, rng: random.Random) -> bytes:
    body = bytearray(target.file)
    for _ in range(rng.randint(1, 30)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body)


def _broken(target: Target, rng: random.Random) -> bytes:
    return broken(target.file, target.audio, rng)


def _wav(form: bytes, data: bytes, extra: bytes = b"") -> bytes:
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + extra + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


KINDS: tuple[Callable[[Target, random.Random], bytes], ...] = (
    _marks,
    _eight_channels,
    _adpcm,
    _bomb,
    _mutated,
    _broken,
)
