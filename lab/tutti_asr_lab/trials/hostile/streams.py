"""Attacks on open streams: broken, huge or misordered frames, texts and audio, and unread responses."""

from __future__ import annotations

import asyncio
import json
import random
import struct

from loadtest.generator.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, masked
from tutti_asr_lab.trials.hostile.handshakes import LISTEN
from tutti_asr_lab.trials.hostile.raw_connection import Line, Target

TYPES = ("KeepAlive", "Finalize", "CloseStream", "Configure", "Resume", "Ticket", "Results", "", "\x00", "finalize")
MEDIA = ("flac", "ogg-opus", "opus&sample_rate=48000", "linear32&sample_rate=16000", "mulaw&sample_rate=8000", "")
OTHERS = ("/vosk", "/v1/realtime?intent=transcription", "/v1/twilio?reply=true")
GIANT_BYTES = 2**20 + 1
PART_BYTES = 3_200  # a tenth of a second


async def random_frames(target: Target, rng: random.Random) -> None:
    """Send frames with wrong opcodes, bits, masks and lengths."""
    async with target.dial() as line:
        if await line.open_stream(LISTEN):
            for _ in range(rng.randint(1, 20)):
                if not await line.send(_frame(rng)):
                    break
            await _end(line, rng)


async def giant_messages(target: Target, rng: random.Random) -> None:
    """Send a message that is or claims to be too large, or never ends."""
    async with target.dial() as line:
        if not await line.open_stream(LISTEN):
            return
        way = rng.randrange(4)
        if way == 0:
            await line.send(masked(rng.choice((TEXT, BINARY)), bytes(GIANT_BYTES)))
        elif way == 1:
            await line.send(struct.pack("!BBQ", 0x82, 0xFF, rng.choice((2**62, 2**63, GIANT_BYTES))) + bytes(50))
        elif way == 2:
            for number in range(rng.randint(5, 50)):
                opcode = CONTINUATION if number else BINARY
                if not await line.send(struct.pack("!BBH", opcode, 0xFE, 60_000) + bytes(4) + bytes(60_000)):
                    break
        else:
            empty = struct.pack("!BB", CONTINUATION, 0x80) + bytes(4)
            await line.send(struct.pack("!BB", TEXT, 0x80) + bytes(4) + empty * 500, messages=50)
        await line.until_closed(1.0)


async def interleaved(target: Target, rng: random.Random) -> None:
    """Send fragments interleaved with other messages and floods of pings."""
    async with target.dial() as line:
        if not await line.open_stream(LISTEN):
            return
        for _ in range(rng.randint(1, 10)):
            opening = masked(rng.choice((TEXT, BINARY)), rng.randbytes(50))
            first = bytes([opening[0] & 0x7F]) + opening[1:]
            between = rng.choice(
                (masked(PING, b"x" * 125), masked(PONG, b""), opening, masked(CONTINUATION, b"y"), b"")
            )
            if not await line.send(first + between * rng.randint(1, 20) + masked(CONTINUATION, b"end"), messages=3):
                break
        await _end(line, rng)


async def wrong_order(target: Target, rng: random.Random) -> None:
    """Send valid messages in an invalid order."""
    async with target.dial() as line:
        if not await line.open_stream(f"{LISTEN}&resumable={rng.choice(('true', 'false'))}"):
            return
        at = 0
        for _ in range(rng.randint(2, 25)):
            if rng.random() < 0.5:
                message = masked(BINARY, target.audio[at : at + PART_BYTES])
                at += PART_BYTES
            else:
                message = masked(TEXT, json.dumps({"type": rng.choice(TYPES[:5]), **_fields(rng)}).encode())
            if not await line.send(message):
                break
        await _end(line, rng)


async def bad_texts(target: Target, rng: random.Random) -> None:
    """Send text that is not JSON, has the wrong fields, or is not UTF-8."""
    path = rng.choice((LISTEN, LISTEN, *OTHERS))
    async with target.dial() as line:
        if not await line.open_stream(path):
            return
        for _ in range(rng.randint(1, 25)):
            if not await line.say(_text(rng)):
                break
        await _end(line, rng)


async def bad_media(target: Target, rng: random.Random) -> None:
    """Send audio that cannot be decoded, from the start or later."""
    encoding = rng.choice(MEDIA)
    path = f"/v1/listen?encoding={encoding}" if encoding else "/v1/listen"
    broken = bytearray(target.file)
    for _ in range(rng.randint(1, 50)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    content = rng.choice((bytes(broken), rng.randbytes(20_000), target.file[: rng.randint(1, 2_000)], bytes(5_000)))
    async with target.dial() as line:
        if not await line.open_stream(path):
            return
        for at in range(0, min(len(content), 40_000), size := rng.randint(500, 8_000)):
            if not await line.send(masked(BINARY, content[at : at + size])):
                break
        await _end(line, rng)


async def odd_audio(target: Target, rng: random.Random) -> None:
    """Send audio in single bytes, odd sizes or empty messages, or far too fast."""
    async with target.dial() as line:
        if not await line.open_stream(LISTEN):
            return
        way = rng.randrange(3)
        if way == 0:
            data = b"".join(masked(BINARY, target.audio[at : at + 1]) for at in range(40))
            await line.send(data, messages=40)
        elif way == 1:
            for _ in range(rng.randint(1, 15)):
                if not await line.send(masked(BINARY, target.audio[: rng.randrange(1, 4_001)])):
                    break
        else:
            await line.send(masked(BINARY, (target.audio * 2)[: 2 * 16_000 * 4]))
        if rng.random() < 0.3:
            await line.send(masked(BINARY, b""))
        await _end(line, rng)


async def deaf(target: Target, rng: random.Random) -> None:
    """Cause many results and read none."""
    async with target.dial(receive_buffer=2_048) as line:
        if not await line.open_stream(f"{LISTEN}&interim_results=true&step_results=true"):
            return
        nonsense = masked(TEXT, b"?" * 250)
        for _ in range(rng.randint(1, 10)):
            if not await line.send(nonsense * 10, messages=10):
                break
        await asyncio.sleep(rng.random())
        if rng.random() < 0.5:
            line.reset()


async def strange_close(target: Target, rng: random.Random) -> None:
    """End in the middle of a frame, or with an invalid close frame."""
    codes = (0, 999, 1_001, 1_004, 1_005, 1_006, 1_015, 2_999, 4_999, 65_535)
    closes = (
        masked(CLOSE, b"\x03"),
        masked(CLOSE, rng.choice(codes).to_bytes(2, "big")),
        masked(CLOSE, (1_000).to_bytes(2, "big") + b"\xff\xfe"),
        masked(CLOSE, (1_000).to_bytes(2, "big") + b"x" * 200),
        masked(CLOSE, b""),
        masked(BINARY, target.audio[:PART_BYTES])[: rng.randint(1, PART_BYTES)],
    )
    async with target.dial() as line:
        if await line.open_stream(LISTEN):
            await line.send(masked(BINARY, target.audio[:PART_BYTES]))
            await line.send(rng.choice(closes) * rng.randint(1, 3))
            await _end(line, rng)


async def impatient(target: Target, rng: random.Random) -> None:
    """Send messages, and possibly an end, before the response to the handshake."""
    audio = [masked(BINARY, target.audio[:PART_BYTES]) for _ in range(rng.randint(1, 10))]
    path = rng.choice((LISTEN, "/v1/listen?encoding=nonsense", *OTHERS))
    async with target.dial() as line:
        await line.send(target.head(path) + b"".join(audio), messages=1 + len(audio))
        if rng.random() < 0.5:
            line.reset()
        else:
            await line.answer()
            await _end(line, rng)


async def _end(line: Line, rng: random.Random) -> None:
    """Close properly, reset, half-close, or wait for the server."""
    way = rng.randrange(4)
    if way == 0:
        await line.say('{"type":"CloseStream"}')
        await line.until_closed()
    elif way == 1:
        line.reset()
    elif way == 2:
        line.half_close()
        await line.until_closed(0.5)


def _frame(rng: random.Random) -> bytes:
    payload = rng.randbytes(rng.choice((0, 1, 10, 125, 126, 300)))
    whole = bytearray(masked(rng.randrange(16), payload))
    way = rng.randrange(5)
    if way == 0:
        whole[0] ^= rng.choice((0x40, 0x20, 0x10, 0x80))  # reserved bits, or not final
    elif way == 1:
        whole[1] &= 0x7F  # not masked
    elif way == 2:
        del whole[rng.randrange(len(whole)) :]
    elif way == 3:
        return rng.randbytes(rng.randint(1, 300))
    return bytes(whole)


def _fields(rng: random.Random) -> dict[str, object]:
    odd: tuple[object, ...] = (None, -1, 0, 7, 2**70, 1.5, "x" * 100, [], {}, ["a b"] * 30, ["x" * 500], True)
    names = ("channel", "keyterms", "features", "ticket", "finals", "cursor_s", "from_s", "session", "audio", "media")
    return {rng.choice(names): rng.choice(odd) for _ in range(rng.randint(0, 3))}


def _text(rng: random.Random) -> str | bytes:
    good = json.dumps({"type": rng.choice(TYPES), "event": "start", **_fields(rng)})
    odd: tuple[str | bytes, ...] = (
        good, good[: rng.randrange(len(good))], "[" * 9_000, '{"a":' * 3_000, "", "null", "1e999", '"', "\x00" * 20,
        rng.randbytes(40), b'{"type":"\xff"}', '{"type":"Finalize","channel":' + "9" * 4_000 + "}", "é" * 20_000,
        '{"type":"session.update","session":{"type":"transcription","audio":{"input":{"format":{"rate":0}}}}}',
        '{"type":"input_audio_buffer.append","audio":"!!"}', '{"config":{"sample_rate":"NaN"}}', '{"eof":1}',
        '{"event":"media","media":{"payload":"A"}}', '{"event":"stop"}',
    )  # fmt: skip
    return rng.choice(odd)
