"""The content of receipts, and the chain of one stream. Pure.

A receipt is a JSON object, signed as a JWS. The first one of a chain has the setup of the stream in clear, the last one
no final. Digests are SHA-256 in hexadecimal. Each receipt covers its whole message, except
what `signed_part` leaves out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.recognition.audio_digest import AudioMark
from server.recognition.events import Final
from server.recognition.saved_state import SavedReceipts

VERSION = 2  # increase it with every change of a digest's definition

encode = msgspec.json.Encoder().encode


class CoveredAudio(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """Samples of each channel, and the digest of `server.recognition.audio_digest`."""

    begin: int
    end: int
    sha256: str

    @classmethod
    def of(cls, mark: AudioMark) -> CoveredAudio:
        """Return the form for receipts."""
        return cls(mark.begin, mark.end, mark.digest.hex())


class FinalText(msgspec.Struct, frozen=True):
    """A final: times in seconds as in its message, and the digest of its words (`text_digest`)."""

    channel: int
    start: float
    duration: float
    reason: str
    words: int
    sha256: str


class Digests(msgspec.Struct, frozen=True):
    """Digests of what a text depends on besides its audio; that of the decoder includes the language model's."""

    model: str
    decoder: str
    language_model: str
    keyterms: str
    settings: str


class ModelInfo(msgspec.Struct, frozen=True):
    """The model by the names that `tutti` has for it."""

    name: str
    version: str
    precision: str
    decoder: str  # as `--decoder` names it
    beams: int


class Setup(msgspec.Struct, frozen=True):
    """What a replay needs: the query without names of models, and the settings of the server that change results."""

    software: str
    model: ModelInfo
    query: tuple[tuple[str, str], ...]
    settings: dict[str, float | str | None]


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One receipt. `previous` is the digest of the payload of the one before it, empty for `number` 0."""

    version: int
    stream: str
    created: str  # start of the stream, UTC
    number: int
    previous: str
    audio: CoveredAudio
    digests: Digests
    message: str  # digest of the message that carries the receipt
    final: FinalText | UnsetType = UNSET  # absent: the end of the stream
    closed: str | UnsetType = UNSET  # why it ended
    setup: Setup | UnsetType = UNSET  # of `number` 0

    @classmethod
    def read(cls, payload: bytes) -> Receipt:
        """Read a payload. Raises: msgspec.MsgspecError."""
        return msgspec.json.decode(payload, type=cls)


ShownWord = tuple[float, float, float, str, str]
"""Start and end in seconds, confidence, the recognized word and the displayed one, as in a message."""


def text_digest(words: Sequence[ShownWord]) -> str:
    """Return the digest of words: a line each of start and end in ms, confidence in 1/10,000, and both texts."""
    lines = [
        f"{round(start * 1e3)}\t{round(end * 1e3)}\t{round(confidence * 1e4)}\t{word}\t{shown}\n"
        for start, end, confidence, word, shown in words
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def signed_part(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what no receipt can cover.

    These are the receipt itself and, in a final, the report of latencies and the id of the connection: both differ if a
    resumed stream sends the final again, and its receipt has to stay the same.
    """
    signed = {name: value for name, value in message.items() if name not in ("receipt", "tutti")}
    if isinstance(signed.get("metadata"), dict):
        signed["metadata"] = {name: value for name, value in signed["metadata"].items() if name != "request_id"}
    return signed


def message_digest(message: dict[str, Any]) -> str:
    """Return the digest of a message's signed part as canonical JSON.

    Keys are sorted, and a whole number has no fraction, so a client may decode a message and encode it again.
    Source: RFC 8785 (JSON Canonicalization Scheme).
    """
    return json_digest(_without_fractions(signed_part(message)))


def _without_fractions(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_fractions(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_fractions(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def json_digest(value: object) -> str:
    """Return the digest of a value as JSON with sorted keys and no spaces."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


class ReceiptChain:
    """Makes the receipts of one stream, in the order in which its finals are sent."""

    def __init__(self, stream: str, created: str, setup: Setup, digests: Digests) -> None:
        self._stream, self._created = stream, created
        self._setup, self._digests = setup, digests
        self._count, self._previous = 0, ""

    def final(self, event: Final, message: bytes, words: Sequence[ShownWord]) -> bytes:
        """Return the payload of a final with its message as JSON and the words of that; `event.audio` is known."""
        assert event.audio is not None, "the session has receipts"
        fields = msgspec.json.decode(message)
        times_s = fields["start"], fields["duration"]
        text = FinalText(event.channel, *times_s, event.reason, len(words), text_digest(words))
        return self._next(event.audio, fields, final=text)

    def end(self, mark: AudioMark, message: bytes, reason: str) -> bytes:
        """Return the payload of the stream's end with its message as JSON."""
        return self._next(mark, msgspec.json.decode(message), closed=reason)

    def saved(self) -> SavedReceipts:
        """Return the position in the chain."""
        return SavedReceipts(self._stream, self._created, self._count, self._previous)

    def restore(self, saved: SavedReceipts) -> None:
        """Continue a chain."""
        self._stream, self._created = saved.stream, saved.created
        self._count, self._previous = saved.count, saved.previous

    def _next(
        self,
        mark: AudioMark,
        message: dict[str, Any],
        *,
        final: FinalText | UnsetType = UNSET,
        closed: str | UnsetType = UNSET,
    ) -> bytes:
        receipt = Receipt(
            version=VERSION,
            stream=self._stream,
            created=self._created,
            number=self._count,
            previous=self._previous,
            audio=CoveredAudio.of(mark),
            digests=self._digests,
            message=message_digest(message),
            final=final,
            closed=closed,
            setup=UNSET if self._count else self._setup,
        )
        payload = encode(receipt)
        self._count, self._previous = self._count + 1, hashlib.sha256(payload).hexdigest()
        return payload
