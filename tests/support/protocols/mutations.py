"""Valid text frames of every protocol, and mutations of them: cut, misspelled, nested, of other types and sizes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

AUDIO = "AAAAAAAA"  # base64 of 6 bytes
LISTEN: tuple[dict[str, Any], ...] = (
    {"type": "KeepAlive"},
    {"type": "Finalize", "channel": 0},
    {"type": "CloseStream"},
    {"type": "Configure", "keyterms": ["acme", "zurich hbf"], "features": {"numerals": True}, "thresholds": {}},
    {"type": "Context", "text": "please ask for doctor Zawadzki at extension four"},
    {"type": "Rewind", "seconds": 2.5, "keyterms": ["acme"], "channel": 0},
    {"type": "Resume", "ticket": "eyJh", "finals": 3, "cursor_s": 1.25},
    {"type": "Resume", "from_s": 0.0},
)
MESSAGES: dict[str, tuple[dict[str, Any], ...]] = {
    "listen": LISTEN,
    "resumable": LISTEN,
    "flux": (
        {"type": "CloseStream"},
        {"type": "ForceEndTurn"},
        {
            "type": "Configure",
            "thresholds": {"eot_threshold": 0.7, "eager_eot_threshold": 0.5, "eot_timeout_ms": 5_000},
            "keyterms": ["acme"],
            "numerals": False,
            "language_hints": [],
        },
    ),
    "openai": (
        {"type": "input_audio_buffer.append", "event_id": "e1", "audio": AUDIO},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear", "event_id": "e2"},
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 16_000},
                        "transcription": {"language": "en", "keywords": ["acme"], "prompt": "doctor Zawadzki"},
                        "turn_detection": {"type": "server_vad", "silence_duration_ms": 500, "threshold": 0.5},
                        "noise_reduction": {"type": "near_field"},
                    }
                },
            },
        },
    ),
    "vosk": (
        {"config": {"sample_rate": 16_000, "words": True, "max_alternatives": 0, "phrase_list": ["acme", "[unk]"]}},
        {"eof": 1},
        {"reset": 1},
    ),
    "twilio": (
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {
            "event": "start",
            "streamSid": "MZ1",
            "start": {
                "callSid": "CA1",
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8_000, "channels": 1},
            },
        },
        {"event": "media", "media": {"track": "inbound", "timestamp": "20", "payload": AUDIO}},
        {"event": "mark", "mark": {"name": "m"}},
        {"event": "dtmf", "dtmf": {"digit": "1"}},
        {"event": "stop"},
    ),
}
"""Client messages by protocol; each field that is read is in one of them."""

LEAVES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**31, 2**53, 2**63, 2**64, 10**400, 10**4_299, -(10**400), 1e-320, -0.0, 1e308,
    float("nan"), float("inf"), "", " ", "\0", "a" * 5_000, "\ud800", "\u202e", "é" * 300, "語" * 300, "😀" * 50,
    "1", "true", "nan", "null", "1e999", [], {}, [None], [[]], {"": None}, {"type": "KeepAlive"}, [1, "a"], ["a"] * 300,
)  # fmt: skip
RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5_000, "0x10", "01", ".5", "1.", "+1", "--1", "'a'",
    '"\\ud800"', '"\\udc00\\ud800"', '"\\u12"', '"\\x41"', '"\n"', "[" * 30_000, '{"a":' * 5_000,
    "[" * 3_000 + "]" * 3_000, "tru", "undefined", "/* */ 1", "1 2", '{"a":1,}', "[1,]", "{1:2}", '"\ufeff"', "\u2028",
)  # fmt: skip
"""Text in the place of a value; most of it is not JSON."""
_MARK = "__here__"
Mutation = Callable[[random.Random, dict[str, Any]], str]


def mutated(protocol: str, count: int, seed: int) -> Iterator[str]:
    """Yield text frames, each a message of the protocol with one to three mutations."""
    rng = random.Random(seed)
    for _ in range(count):
        message = json.loads(json.dumps(rng.choice(MESSAGES[protocol])))
        text = rng.choice(IN_TREE)(rng, message)
        for _ in range(rng.choice((0, 0, 1, 2))):
            text = rng.choice(IN_TEXT)(rng, text)
        yield text


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values below an object."""
    found: list[tuple[Any, ...]] = []
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        found += [(*path, name), *_paths(value, (*path, name))]
    return found


def _owner(message: Any, path: tuple[Any, ...]) -> Any:
    for name in path[:-1]:
        message = message[name]
    return message


def _other_value(rng: random.Random, message: dict[str, Any]) -> str:
    path = rng.choice(_paths(message))
    _owner(message, path)[path[-1]] = rng.choice(LEAVES)
    return json.dumps(message, ensure_ascii=rng.random() < 0.9).encode(errors="replace").decode()


def _other_text(rng: random.Random, message: dict[str, Any]) -> str:
    path = rng.choice(_paths(message))
    _owner(message, path)[path[-1]] = _MARK
    return json.dumps(message).replace(f'"{_MARK}"', rng.choice(RAW), 1)


def _other_name(rng: random.Random, message: dict[str, Any]) -> str:
    path = rng.choice([path for path in _paths(message) if isinstance(path[-1], str)])
    owner, name = _owner(message, path), path[-1]
    names = (name.upper(), name.capitalize(), name + " ", "", name + "s", "__proto__", "a" * 3_000, name[::-1], "$.x`")
    owner[rng.choice(names)] = owner.pop(name)
    return json.dumps(message)


def _less(rng: random.Random, message: dict[str, Any]) -> str:
    path = rng.choice(_paths(message))
    del _owner(message, path)[path[-1]]
    return json.dumps(message)


def _more(rng: random.Random, message: dict[str, Any]) -> str:
    message[rng.choice(("x", "type", "event", "channel", "model", "redact", "config", "final"))] = rng.choice(LEAVES)
    return json.dumps(message, ensure_ascii=False).encode(errors="replace").decode()


def _twice(rng: random.Random, message: dict[str, Any]) -> str:
    name, value = rng.choice(list(message.items()))
    again = json.dumps({name: rng.choice((value, rng.choice(LEAVES)))})
    return json.dumps(message)[:-1] + ", " + again[1:]


def _case(rng: random.Random, message: dict[str, Any]) -> str:
    text = json.dumps(message)
    return rng.choice((text.lower(), text.upper(), text.swapcase()))


def _nested(rng: random.Random, message: dict[str, Any]) -> str:
    deep = rng.choice((5, 500, 5_000))
    return rng.choice(('{"type":' * deep + json.dumps(message), "[" * deep + json.dumps(message) + "]" * deep))


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _flipped(rng: random.Random, text: str) -> str:
    if not text:
        return text
    at = rng.randrange(len(text))
    return text[:at] + chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xD800), 0x1F600))) + text[at + 1 :]


def _around(rng: random.Random, text: str) -> str:
    return rng.choice(
        (f"\ufeff{text}", f" {text}\n", f"{text}{text}", f"{text},", f"[{text}]", f'"{text}"', f"\0{text}")
    )


def _same(_: random.Random, text: str) -> str:
    return text


IN_TREE: tuple[Mutation, ...] = (
    _other_value, _other_value, _other_text, _other_text, _other_name, _less, _more, _twice, _case, _nested,
)  # fmt: skip
IN_TEXT = (_cut, _cut, _flipped, _around, _same)
