"""Text frames of vosk-server's protocol in both directions. Pure.

Source: vosk-server's websocket/asr_server.py at c2e82f0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from model.ctc.words import Word, joined
from model.text.letters import unspellable
from model.text.spelled import spoken
from server.errors import BadFrame
from server.protocols.features import NEVER_IGNORED, REDACT
from server.protocols.json_errors import problem_of
from server.recognition.keyterms.keyterms import MAX_CHARACTERS, MAX_TERMS

RATES = range(8_000, 48_001)
DEFAULT_RATE = 8_000  # as the reference server
MAX_FRAME_CHARACTERS = 262_144  # a grammar may list thousands of phrases
MAX_ALTERNATIVES = 100
MAX_PHRASE_WORDS = 20
MAX_NAME = 32  # longest excerpt of a setting's name in a close reason
UNKNOWN = "[unk]"  # the word in vosk grammars for any other word


class Config(msgspec.Struct, frozen=True):
    """Settings; omitted ones stay unchanged. Numbers may be given as text, and booleans as numbers."""

    sample_rate: float | None = None
    words: bool | None = None
    max_alternatives: int | None = None
    phrase_list: list[str] | None = None


class ClientFrame(msgspec.Struct, frozen=True):
    """A text frame with one of three fields."""

    config: Config | None = None
    eof: bool | None = None
    reset: bool | None = None


COMMANDS = frozenset(ClientFrame.__struct_fields__)
SETTINGS = frozenset(Config.__struct_fields__)
IN_URL = frozenset({"model", REDACT})
OFF: tuple[object, ...] = (None, False, 0, "", "false", "0", [], {})  # values that request nothing


def parse_frame(text: str, *, lenient: bool = False) -> tuple[ClientFrame, tuple[str, ...]]:
    """Parse a text frame; return it with the unsupported settings that a `lenient` server ignores. Raises: BadFrame."""
    if len(text) > MAX_FRAME_CHARACTERS:
        raise BadFrame(f"the message has {len(text)} characters; at most {MAX_FRAME_CHARACTERS}")
    try:
        raw = msgspec.json.decode(text)
        frame = msgspec.convert(raw, ClientFrame, strict=False)
    except msgspec.ValidationError as error:
        raise BadFrame(problem_of(error, ClientFrame)) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFrame("a text frame must be a JSON object with config, eof or reset") from error
    if (frame.config is not None) + bool(frame.eof) + bool(frame.reset) != 1:
        raise BadFrame("a text frame must have one of config, eof, reset")
    ignored = list(_unsupported(raw, COMMANDS, "", lenient=lenient))
    if frame.config is not None:
        ignored += _unsupported(raw["config"], SETTINGS, "config.", lenient=lenient)
        _check(frame.config)
    return frame, tuple(ignored)


def _unsupported(given: dict[str, object], known: frozenset[str], path: str, *, lenient: bool) -> Iterator[str]:
    """Yield the names of unsupported settings if lenient, refuse them otherwise. Raises: BadFrame.

    So are `model` and `redact` in `config`: they are set in the URL.
    """
    for name, value in given.items():
        if name in known or value in OFF:
            continue
        shown = f"{path}{name[:MAX_NAME]}".encode("ascii", "replace").decode()
        if lenient and not name.casefold().startswith(NEVER_IGNORED):
            yield shown
        else:
            instead = f"set ?{name}= in the URL" if name in IN_URL else "leave it out"
            raise BadFrame(f"{shown}: not supported by this server; {instead}")


def _check(config: Config) -> None:
    rate = config.sample_rate
    if rate is not None and rate not in RATES:
        raise BadFrame(f"sample_rate: {rate:g} is not valid; must be a whole number from {RATES[0]} to {RATES[-1]}")
    if config.max_alternatives is not None and not 0 <= config.max_alternatives <= MAX_ALTERNATIVES:
        raise BadFrame(f"max_alternatives: must be from 0 to {MAX_ALTERNATIVES}")


def key_terms(phrases: Sequence[str]) -> tuple[str, ...]:
    """Convert phrases of a grammar to key terms, as many as the limits of key terms allow.

    Phrases that cannot be spelled are left out, and those after the first `2 * MAX_TERMS`: a grammar is a hint.
    """
    kept: list[str] = []
    characters = 0
    for phrase in phrases[: 2 * MAX_TERMS]:  # a check takes 5 us on the event loop
        words = [word for word in phrase.split() if word != UNKNOWN]
        text = joined(words)
        if len(words) > MAX_PHRASE_WORDS or characters + len(text) > MAX_CHARACTERS:
            continue
        if unspellable(text) or not spoken(text):
            continue
        kept.append(text)
        characters += len(text)
        if len(kept) == MAX_TERMS:
            break
    return tuple(kept)


class WordOut(msgspec.Struct):
    """One word with its stream times in seconds."""

    conf: float
    end: float
    start: float
    word: str


class Final(msgspec.Struct, omit_defaults=True):
    """A final; `text` is always present because clients index it."""

    text: str
    result: list[WordOut] | UnsetType = UNSET


class Alternative(msgspec.Struct, omit_defaults=True):
    """The only transcript of a final, for clients that request alternatives."""

    confidence: float
    text: str
    result: list[WordOut] | UnsetType = UNSET


class Alternatives(msgspec.Struct):
    """A final for clients that request alternatives."""

    alternatives: tuple[Alternative]


class Partial(msgspec.Struct):
    """The text so far."""

    partial: str


def partial_frame(text: str) -> bytes:
    """Encode the answer to an audio frame without a final."""
    return msgspec.json.encode(Partial(text))


def final_frame(words: Sequence[Word], *, with_words: bool, alternatives: bool) -> bytes:
    """Encode a final of these words, possibly none."""
    text = joined(word.text for word in words)
    result = [_word(word) for word in words] if with_words and words else UNSET
    if not alternatives:
        return msgspec.json.encode(Final(text, result))
    confidence = sum(word.confidence for word in words) / len(words) if words else 0.0
    return msgspec.json.encode(Alternatives((Alternative(round(confidence, 4), text, result),)))


def _word(word: Word) -> WordOut:
    return WordOut(round(word.confidence, 4), round(word.end_s, 3), round(word.start_s, 3), word.text)
