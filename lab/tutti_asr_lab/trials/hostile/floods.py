"""Floods of frames that are cheap for the client: pings, pongs, empty frames, one-byte fragments, pipelined requests.

One in `FRAMES_A_MESSAGE` frames of a flood counts as a message, so that floods leave room for other attacks.
"""

from __future__ import annotations

import asyncio
import random

from loadtest.generator.frames import BINARY, CONTINUATION, FINAL, PING, PONG, TEXT, masked
from tutti_asr_lab.trials.hostile.handshakes import LISTEN
from tutti_asr_lab.trials.hostile.raw_connection import Line, Target

FRAMES_A_MESSAGE = 50
MOST_FRAMES = 2_000
OTHERS = ("/vosk", "/v1/realtime?intent=transcription", "/v1/twilio?reply=true")
NO_KEY = b"\0\0\0\0"  # constant mask, so that frames are built once


async def pings(target: Target, rng: random.Random) -> None:
    """Send pings; their pongs may be left unread."""
    deaf = rng.random() < 0.5
    async with target.dial(receive_buffer=2_048 if deaf else None) as line:
        if await line.open_stream(LISTEN):
            await _flood(line, rng, masked(PING, rng.randbytes(rng.choice((0, 1, 125))), NO_KEY))
            if not deaf:
                await line.until_closed(rng.random())


async def unsolicited_pongs(target: Target, rng: random.Random) -> None:
    """Send unsolicited pongs."""
    async with target.dial() as line:
        if await line.open_stream(LISTEN):
            await _flood(line, rng, masked(PONG, rng.randbytes(rng.choice((0, 4, 125))), NO_KEY))
            await line.say('{"type":"CloseStream"}')
            await line.until_closed()


async def empty_frames(target: Target, rng: random.Random) -> None:
    """Send empty messages, and a message of endless empty fragments."""
    path = rng.choice((LISTEN, *OTHERS))
    async with target.dial() as line:
        if not await line.open_stream(path):
            return
        way = rng.randrange(3)
        if way == 2:
            await line.send(_fragment(BINARY, b""), messages=1)
        await _flood(
            line, rng, (masked(TEXT, b"", NO_KEY), masked(BINARY, b"", NO_KEY), _fragment(CONTINUATION, b""))[way]
        )
        await line.until_closed(rng.random())


async def tiny_fragments(target: Target, rng: random.Random) -> None:
    """Send a message in one-byte fragments, with or without an end."""
    async with target.dial() as line:
        if not await line.open_stream(LISTEN):
            return
        await line.send(_fragment(rng.choice((TEXT, BINARY)), b"{"), messages=1)
        if await _flood(line, rng, _fragment(CONTINUATION, b"x")) and rng.random() < 0.5:
            await line.send(masked(CONTINUATION, b"}"))
        await line.until_closed(rng.random())


async def early_pings(target: Target, rng: random.Random) -> None:
    """Send pings right after a handshake, before its response."""
    async with target.dial() as line:
        if await line.send(target.head(LISTEN)):
            await _flood(line, rng, masked(PING, b"early", NO_KEY))
            await line.answer()


async def pipelined(target: Target, rng: random.Random) -> None:
    """Send many pipelined requests; the responses may be left unread, and an end or a handshake may follow."""
    request = rng.choice((b"GET /healthz", b"GET /metrics", b"POST /v1/listen")) + b" HTTP/1.1\r\nHost: x\r\n"
    request += rng.choice((b"", b"Content-Length: 3\r\nExpect: 100-continue\r\n")) + b"\r\n"
    async with target.dial(receive_buffer=2_048) as line:
        count = rng.choice((2, 20, 500))
        if not await line.send(request * count, messages=max(1, count // FRAMES_A_MESSAGE)):
            return
        way = rng.randrange(4)
        if way == 0:
            await line.answer()
        elif way == 1:
            line.half_close()
            await line.until_closed(1.0)
        elif way == 2:
            await line.send(target.head(LISTEN))
            await line.until_closed(1.0)


async def _flood(line: Line, rng: random.Random, frame: bytes) -> bool:
    """Send a frame many times in a few writes; returns False if the server accepts no more."""
    for _ in range(rng.randint(1, 4)):
        count = rng.randint(FRAMES_A_MESSAGE, MOST_FRAMES // 4)
        if not await line.send(frame * count, messages=count // FRAMES_A_MESSAGE):
            return False
        await asyncio.sleep(0.01)
    return True


def _fragment(opcode: int, payload: bytes) -> bytes:
    """Return a frame of an unfinished message."""
    whole = masked(opcode, payload, NO_KEY)
    return bytes([whole[0] & ~FINAL]) + whole[1:]
