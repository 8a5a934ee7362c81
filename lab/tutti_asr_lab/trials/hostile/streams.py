"""Attacks on open streams: broken, huge or misordered frames, texts and audio, floods, and unread responses.

Each function draws what a hostile client sends on one connection; `raw_connection.perform` plays it.
"""

from __future__ import annotations

import json
import random
import struct

from loadtest.generator.frames import BINARY, CLOSE, CONTINUATION, FINAL, PING, PONG, TEXT, masked
from tutti_asr_lab.trials.hostile.containers import broken
from tutti_asr_lab.trials.hostile.handshakes import FRAMES_A_MESSAGE, LISTEN, LIVE_BYTES, NARROW, OTHERS, flipped, word
from tutti_asr_lab.trials.hostile.raw_connection import Act, End, Target

FLUX = "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000"
TYPES = ("KeepAlive", "Finalize", "CloseStream", "Configure", "Resume", "Ticket", "Results", "", "\x00", "finalize")
MEDIA = ("flac", "ogg-opus", "opus&sample_rate=48000", "linear32&sample_rate=16000", "mulaw&sample_rate=8000", "")
SCRIPTS = ((0x4E00, 0x9FFF), (0xE0, 0x17F), (0x1F300, 0x1FAFF), (0xAC00, 0xD7A3), (0x61, 0x7B))
GOOD = (
    {"type": "KeepAlive"},
    {"type": "Finalize", "channel": 0},
    {"type": "Configure", "keyterms": ["tutti"]},
    {"type": "Context", "text": "Am I speaking to Ms. Kowalczyk?"},
    {"type": "Resume", "ticket": "x"},
    {"type": "Rewind", "seconds": 3},
)
PART_BYTES = 3_200  # of audio: a tenth of a second
GIANT_BYTES = 2**20 + 1
LONG = 31_000  # characters of a text
NO_KEY = b"\0\0\0\0"  # constant mask, so that frames are built once


def random_frames(target: Target, rng: random.Random) -> Act:
    """Frames with wrong opcodes, bits, masks and lengths."""

    def frame() -> bytes:
        whole = bytearray(masked(rng.randrange(16), rng.randbytes(rng.choice((0, 1, 10, 125, 126, 300)))))
        way = rng.randrange(5)
        if way == 0:
            whole[0] ^= rng.choice((0x40, 0x20, 0x10, 0x80))  # reserved bits, or not final
        elif way == 1:
            whole[1] &= 0x7F  # not masked
        elif way == 2:
            del whole[rng.randrange(len(whole)) :]
        return rng.randbytes(rng.randint(1, 300)) if way == 3 else bytes(whole)

    return Act(target.head(LISTEN), [frame() for _ in range(rng.randint(1, 20))], end=End.ANY)


def giant_messages(target: Target, rng: random.Random) -> Act:
    """A message that is or claims to be too large, or never ends."""
    parts = [
        struct.pack("!BBH", CONTINUATION if number else BINARY, 0xFE, 60_000) + bytes(60_004)
        for number in range(rng.randint(5, 50))
    ]
    empty = struct.pack("!BB", CONTINUATION, 0x80) + bytes(4)
    ways = (
        [masked(rng.choice((TEXT, BINARY)), bytes(GIANT_BYTES))],
        [struct.pack("!BBQ", 0x82, 0xFF, rng.choice((2**62, 2**63, GIANT_BYTES))) + bytes(50)],
        parts,
        [struct.pack("!BB", TEXT, 0x80) + bytes(4) + empty * 500],
    )
    return Act(target.head(LISTEN), rng.choice(ways), end=End.WAIT)


def interleaved(target: Target, rng: random.Random) -> Act:
    """Fragments interleaved with other messages and floods of pings."""
    frames = []
    for _ in range(rng.randint(1, 10)):
        opening = masked(rng.choice((TEXT, BINARY)), rng.randbytes(50))
        first = bytes([opening[0] & 0x7F]) + opening[1:]
        others = (masked(PING, b"x" * 125), masked(PONG, b""), opening, masked(CONTINUATION, b"y"), b"")
        frames.append(first + rng.choice(others) * rng.randint(1, 20) + masked(CONTINUATION, b"end"))
    return Act(target.head(LISTEN), frames, messages=3, end=End.ANY)


def wrong_order(target: Target, rng: random.Random) -> Act:
    """Valid messages in an invalid order."""
    frames = [
        masked(BINARY, target.audio[number * PART_BYTES :][:PART_BYTES])
        if rng.random() < 0.5
        else masked(TEXT, json.dumps({"type": rng.choice(TYPES[:5]), **_fields(rng)}).encode())
        for number in range(rng.randint(2, 25))
    ]
    return Act(target.head(f"{LISTEN}&resumable={rng.choice(('true', 'false'))}"), frames, end=End.ANY)


def bad_texts(target: Target, rng: random.Random) -> Act:
    """Text that is not JSON, has the wrong fields, or is not UTF-8."""
    frames = [masked(TEXT, _text(rng)) for _ in range(rng.randint(1, 25))]
    return Act(target.head(rng.choice((LISTEN, LISTEN, *OTHERS))), frames, end=End.ANY)


def bad_media(target: Target, rng: random.Random) -> Act:
    """Audio that cannot be decoded, from the start or later."""
    encoding = rng.choice(MEDIA)
    damaged = flipped(target.file, rng.randint(1, 50), rng)
    content = rng.choice((damaged, rng.randbytes(20_000), target.file[: rng.randint(1, 2_000)], bytes(5_000)))
    path = f"/v1/listen?encoding={encoding}" if encoding else "/v1/listen"
    return Act(target.head(path), _parts(content[:40_000], rng.randint(500, 8_000)), end=End.ANY)


def odd_audio(target: Target, rng: random.Random) -> Act:
    """Audio in single bytes, odd sizes or empty messages, or far too fast."""
    ways = (
        _parts(target.audio[:40], 1),
        [masked(BINARY, target.audio[: rng.randrange(1, 4_001)]) for _ in range(rng.randint(1, 15))],
        [masked(BINARY, (target.audio * 2)[: 2 * 16_000 * 4])],
    )
    frames = rng.choice(ways) + ([masked(BINARY, b"")] if rng.random() < 0.3 else [])
    return Act(target.head(LISTEN), frames, end=End.ANY)


def deaf(target: Target, rng: random.Random) -> Act:
    """Many results, none of which is read."""
    frames = [masked(TEXT, b"?" * 250) * 10] * rng.randint(1, 10)
    head = target.head(f"{LISTEN}&interim_results=true&step_results=true")
    end = rng.choice((End.RESET, End.NONE))
    return Act(head, frames, messages=10, pause_s=rng.random() / 10, receive_buffer=NARROW, end=end)


def strange_close(target: Target, rng: random.Random) -> Act:
    """An end in the middle of a frame, or with an invalid close frame."""
    codes = (0, 999, 1_001, 1_004, 1_005, 1_006, 1_015, 2_999, 4_999, 65_535)
    audio = masked(BINARY, target.audio[:PART_BYTES])
    payloads = (b"\x03", rng.choice(codes).to_bytes(2, "big"), b"\x03\xe8\xff\xfe", b"\x03\xe8" + b"x" * 200, b"")
    closes = (*(masked(CLOSE, payload) for payload in payloads), audio[: rng.randint(1, PART_BYTES)])
    return Act(target.head(LISTEN), [audio, rng.choice(closes) * rng.randint(1, 3)], end=End.ANY)


def impatient(target: Target, rng: random.Random) -> Act:
    """Messages, and possibly an end, before the response to the handshake."""
    path = rng.choice((LISTEN, "/v1/listen?encoding=nonsense", *OTHERS))
    frames = [masked(BINARY, target.audio[:PART_BYTES])] * rng.randint(1, 10)
    return Act(target.head(path), frames, blind=True, end=rng.choice((End.RESET, End.ANSWER)))


def pings(target: Target, rng: random.Random) -> Act:
    """A flood of pings, whose pongs may be left unread."""
    unread = rng.random() < 0.5
    end = End.NONE if unread else End.WAIT
    return _flood(target, rng, masked(PING, rng.randbytes(rng.choice((0, 1, 125))), NO_KEY), end, unread=unread)


def unsolicited_pongs(target: Target, rng: random.Random) -> Act:
    """A flood of pongs."""
    return _flood(target, rng, masked(PONG, rng.randbytes(rng.choice((0, 4, 125))), NO_KEY), End.CLOSE)


def empty_frames(target: Target, rng: random.Random) -> Act:
    """Empty messages, or a message of endless empty fragments."""
    frame = rng.choice((masked(TEXT, b"", NO_KEY), masked(BINARY, b"", NO_KEY), _fragment(CONTINUATION, b"")))
    return _flood(target, rng, frame, End.WAIT, path=rng.choice((LISTEN, *OTHERS)))


def tiny_fragments(target: Target, rng: random.Random) -> Act:
    """A message in one-byte fragments."""
    first = _fragment(rng.choice((TEXT, BINARY)), b"{")
    act = _flood(target, rng, _fragment(CONTINUATION, b"x"), End.WAIT)
    last = [masked(CONTINUATION, b"}")] if rng.random() < 0.5 else []
    return Act(act.request, [first, *act.frames, *last], messages=act.messages, pause_s=act.pause_s, end=End.WAIT)


def early_pings(target: Target, rng: random.Random) -> Act:
    """Pings right after a handshake, before its response."""
    return _flood(target, rng, masked(PING, b"early", NO_KEY), End.ANSWER, blind=True)


def live_container(target: Target, rng: random.Random) -> Act:
    """A broken container in messages of any size, with any kind of end."""
    content = broken(target.file, target.audio, rng)[:LIVE_BYTES]
    path = rng.choice(("/v1/listen", "/v1/listen", "/v1/listen?encoding=flac", "/v1/listen?encoding=ogg-opus"))
    return Act(target.head(path), _parts(content, rng.choice((500, 4_000, 60_000))), end=End.ANY)


def damaged_json(target: Target, rng: random.Random) -> Act:
    """JSON messages that are cut, of unknown types, or with values that are not JSON."""
    frames = []
    for _ in range(rng.randint(1, 25)):
        text = json.dumps(rng.choice(GOOD))
        text = rng.choice((text, text.lower(), text[:-1] + ',"x":NaN}', text.replace("type", "Type")))
        frames.append(masked(TEXT, text[: rng.randint(1, len(text))].encode()))
    return Act(target.head(rng.choice((LISTEN, LISTEN, f"{LISTEN}&resumable=true", FLUX))), frames, end=End.RESET)


def long_contexts(target: Target, rng: random.Random) -> Act:
    """`Context` and `Configure` messages as long as they may be, without a pause."""
    frames = []
    for _ in range(rng.randint(1, 10)):
        low, high = rng.choice(SCRIPTS)
        text = "".join(chr(rng.randrange(low, high)) for _ in range(LONG))
        terms = [word(rng) for _ in range(200)]
        message = rng.choice(({"type": "Context", "text": text}, {"type": "Configure", "keyterms": terms}))
        frames.append(masked(TEXT, json.dumps(message, ensure_ascii=False).encode(errors="replace")))
    return Act(target.head(LISTEN), frames, end=End.CLOSE)


def _flood(
    target: Target,
    rng: random.Random,
    frame: bytes,
    end: End,
    *,
    path: str = LISTEN,
    blind: bool = False,
    unread: bool = False,
) -> Act:
    """A frame many times in a few writes."""
    count = rng.randint(FRAMES_A_MESSAGE, 500)
    return Act(
        target.head(path),
        [frame * count] * rng.randint(1, 4),
        blind=blind,
        messages=count // FRAMES_A_MESSAGE,
        pause_s=0.01,
        receive_buffer=NARROW if unread else None,
        end=end,
    )


def _fragment(opcode: int, payload: bytes) -> bytes:
    """Return a frame of an unfinished message."""
    whole = masked(opcode, payload, NO_KEY)
    return bytes([whole[0] & ~FINAL]) + whole[1:]


def _parts(content: bytes, size: int) -> list[bytes]:
    return [masked(BINARY, content[at : at + size]) for at in range(0, len(content), size)]


def _fields(rng: random.Random) -> dict[str, object]:
    odd: tuple[object, ...] = (None, -1, 0, 7, 2**70, 1.5, "x" * 100, [], {}, ["a b"] * 30, ["x" * 500], True)
    names = ("channel", "keyterms", "features", "ticket", "finals", "cursor_s", "from_s", "session", "audio", "media")
    return {rng.choice(names): rng.choice(odd) for _ in range(rng.randint(0, 3))}


def _text(rng: random.Random) -> bytes:
    good = json.dumps({"type": rng.choice(TYPES), "event": "start", **_fields(rng)})
    odd: tuple[str | bytes, ...] = (
        good, good[: rng.randrange(len(good))], "[" * 9_000, '{"a":' * 3_000, "", "null", "1e999", '"', "\x00" * 20,
        rng.randbytes(40), b'{"type":"\xff"}', '{"type":"Finalize","channel":' + "9" * 4_000 + "}", "é" * 20_000,
        '{"type":"session.update","session":{"type":"transcription","audio":{"input":{"format":{"rate":0}}}}}',
        '{"type":"input_audio_buffer.append","audio":"!!"}', '{"config":{"sample_rate":"NaN"}}', '{"eof":1}',
        '{"event":"media","media":{"payload":"A"}}', '{"event":"stop"}',
    )  # fmt: skip
    chosen = rng.choice(odd)
    return chosen if isinstance(chosen, bytes) else chosen.encode(errors="replace")
