"""Hostile texts: damaged JSON, long `Context` messages, handshakes with ever new key terms, abandoned handshakes."""

from __future__ import annotations

import json
import random
import string

from tutti_asr_lab.trials.hostile.handshakes import LISTEN
from tutti_asr_lab.trials.hostile.raw_connection import Target

FLUX = "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000"
LONG = 31_000  # characters
SCRIPTS = ((0x4E00, 0x9FFF), (0xE0, 0x17F), (0x1F300, 0x1FAFF), (0xAC00, 0xD7A3), (0x61, 0x7B))
GOOD = (
    {"type": "KeepAlive"},
    {"type": "Finalize", "channel": 0},
    {"type": "Configure", "keyterms": ["tutti"]},
    {"type": "Context", "text": "Am I speaking to Ms. Kowalczyk?"},
    {"type": "Resume", "ticket": "x"},
    {"type": "Rewind", "seconds": 3},
)


async def damaged_json(target: Target, rng: random.Random) -> None:
    """Send JSON messages that are cut, of unknown types, or with values that are not JSON."""
    async with target.dial() as line:
        if not await line.open_stream(rng.choice((LISTEN, LISTEN, f"{LISTEN}&resumable=true", FLUX))):
            return
        for _ in range(rng.randint(1, 25)):
            text = json.dumps(rng.choice(GOOD))
            text = rng.choice((text, text.lower(), text[:-1] + ',"x":NaN}', text.replace("type", "Type")))
            if not await line.say(text[: rng.randint(1, len(text))]):
                break
        line.reset()


async def long_contexts(target: Target, rng: random.Random) -> None:
    """Send `Context` and `Configure` messages as long as they may be, without a pause."""
    async with target.dial() as line:
        if not await line.open_stream(LISTEN):
            return
        for _ in range(rng.randint(1, 10)):
            words = [_word(rng) for _ in range(200)]
            low, high = rng.choice(SCRIPTS)
            text = "".join(chr(rng.randrange(low, high)) for _ in range(LONG))
            message = rng.choice(({"type": "Context", "text": text}, {"type": "Configure", "keyterms": words}))
            if not await line.say(json.dumps(message, ensure_ascii=False)):
                break
        await line.say('{"type":"CloseStream"}')
        await line.until_closed()


async def new_key_terms(target: Target, rng: random.Random) -> None:
    """Open a stream with 200 key terms that no stream had before."""
    async with target.dial() as line:
        await line.open_stream(LISTEN + "".join(f"&keyterm={_word(rng)}" for _ in range(200)))


async def abandoned(target: Target, rng: random.Random) -> None:
    """Send a handshake and leave before the answer."""
    async with target.dial() as line:
        await line.send(target.head(LISTEN + f"&keyterm={_word(rng)}" * rng.randrange(20)))
        line.reset()


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=12))
