"""Receipts with the messages that carry them, as recorded by a client, and what has no receipt. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from server.receipts.keys import BadSignature, payload_of
from server.receipts.receipt import VERSION, Receipt, Setup, ShownWord, signed_part


class BadReceipt(Exception):
    """Messages from which no receipts can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One receipt, signed, its payload and content, and the message that carried it."""

    signed: str
    payload: bytes
    receipt: Receipt
    message: dict[str, Any]

    @property
    def digest(self) -> str:
        """Digest of the payload, which the next receipt has as `previous`."""
        return hashlib.sha256(self.payload).hexdigest()

    @property
    def words(self) -> list[ShownWord]:
        """The words of the message. Raises: BadReceipt."""
        words = self._alternative["words"]
        if not isinstance(words, list):
            raise BadReceipt("a message with a receipt has no list of words")
        return [_word(word) for word in words]

    @property
    def transcript(self) -> str:
        """The transcript of the message. Raises: BadReceipt."""
        return str(self._alternative["transcript"])

    @property
    def _alternative(self) -> dict[str, Any]:
        try:
            alternative: dict[str, Any] = self.message["channel"]["alternatives"][0]
        except (KeyError, IndexError, TypeError):
            raise BadReceipt("a message with a receipt has no transcript") from None
        if not isinstance(alternative, dict) or not {"words", "transcript"} <= alternative.keys():
            raise BadReceipt("a message with a receipt has no words")
        return alternative


@dataclass(frozen=True, slots=True)
class Recorded:
    """The receipts of one stream in the order of their messages, at least one.

    `unsigned` are the other messages: those without a receipt, or with that of an earlier message and other content.
    """

    entries: tuple[Entry, ...]
    unsigned: tuple[Any, ...] = ()

    @classmethod
    def of_messages(cls, messages: Iterable[Any]) -> Recorded:
        """Sort messages by whether they have receipts; a copy, which a resumed stream can send, counts once.

        Raises: BadReceipt.
        """
        entries: dict[str, Entry] = {}
        unsigned: list[Any] = []
        for message in messages:
            signed = message.get("receipt") if isinstance(message, dict) else None
            if not isinstance(signed, str):
                unsigned.append(message)
            elif signed not in entries:
                entries[signed] = _entry(signed, message)
            elif signed_part(message) != signed_part(entries[signed].message):
                unsigned.append(message)
        if not entries:
            raise BadReceipt("no receipts: record the messages of a stream with receipt=true, one a line")
        return cls(tuple(entries.values()), tuple(unsigned))

    @property
    def first(self) -> Receipt:
        """The first receipt, which has the setup."""
        return self.entries[0].receipt

    @property
    def setup(self) -> Setup:
        """What a replay needs. Raises: BadReceipt if the first receipt is missing."""
        for entry in self.entries:
            if isinstance(entry.receipt.setup, Setup):
                return entry.receipt.setup
        raise BadReceipt("the first receipt of the stream is missing, which has the setup")

    @property
    def closed(self) -> str | None:
        """Why the stream ended, None if its last message is missing."""
        reason = self.entries[-1].receipt.closed
        return reason if isinstance(reason, str) else None

    @property
    def finals(self) -> Sequence[Entry]:
        """The entries of finals."""
        return [entry for entry in self.entries if not isinstance(entry.receipt.final, msgspec.UnsetType)]


def read_recorded(text: str) -> Recorded:
    """Read recorded messages: one a line, or a JSON list. Raises: BadReceipt."""
    try:
        document = json.loads(text)
    except ValueError:
        return Recorded.of_messages(_lines(text))
    return Recorded.of_messages(document if isinstance(document, list) else [document])


def _lines(text: str) -> list[Any]:
    values = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values.append(json.loads(line))
        except ValueError:
            raise BadReceipt(f"line {number} is not JSON") from None
    return values


def _entry(signed: str, message: dict[str, Any]) -> Entry:
    try:
        payload = payload_of(signed)
        receipt = Receipt.read(payload)
    except (BadSignature, msgspec.MsgspecError) as error:
        raise BadReceipt(f"not a receipt: {error}") from error
    if receipt.version != VERSION:
        raise BadReceipt(f"the receipt has version {receipt.version}; this program supports only version {VERSION}")
    return Entry(signed, payload, receipt, message)


def _word(word: Any) -> ShownWord:
    try:
        text = str(word["word"])
        times = float(word["start"]), float(word["end"]), float(word["confidence"])
        return (*times, text, str(word.get("punctuated_word", text)))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadReceipt("a message with a receipt has a word without times") from None


WITHOUT_TEXT = frozenset(
    {"SpeechStarted", "UtteranceEnd", "Ticket", "Resumed", "ResumeRefused", "Error", "ConfigureSuccess"}
    | {"ConfigureFailure", "ContextSuccess", "ContextFailure", "RewindFailure"}
)
"""Types of messages that never have a receipt and give no text; interim results have none either."""

_SHOWN = 60  # most characters of a transcript or a value in a report


def unsigned_claims(recorded: Recorded) -> Iterator[str]:
    """Yield what looks like a part of the transcript and is not signed: finals and unknown messages."""
    for message in recorded.unsigned:
        if _kind(message) is None:
            yield f"{_described(message)} has no receipt of its own"


def unsigned_parts(recorded: Recorded) -> list[str]:
    """Return the other parts that no receipt covers, for a report."""
    kinds = Counter(kind for kind in map(_kind, recorded.unsigned) if kind is not None)
    parts = [f"{count} {kind}" for kind, count in kinds.items()]
    if any("tutti" in entry.message for entry in recorded.finals):
        parts.append("tutti (times of steps)")
    ids = Counter(_request_id(entry.message) for entry in recorded.finals)
    ids.pop(recorded.first.stream, None)
    return parts + [f"metadata.request_id {name[:_SHOWN]!r} of {count} finals" for name, count in ids.items()]


def _kind(message: Any) -> str | None:
    """Return what an unsigned message is for a report, None if it has to be signed or is unknown."""
    if not isinstance(message, dict) or "receipt" in message:
        return None
    if message.get("type") == "Results" and message.get("is_final") is False:
        return "interim results"
    return message["type"] if message.get("type") in WITHOUT_TEXT else None


def _described(message: Any) -> str:
    try:
        text = str(message["channel"]["alternatives"][0]["transcript"])
        return f"the final {text[:_SHOWN]!r} at {float(message['start']):.3f} s"
    except (KeyError, IndexError, TypeError, ValueError):
        name = message.get("type") if isinstance(message, dict) else message
        return f"the message {str(name)[:_SHOWN]!r}"


def _request_id(message: dict[str, Any]) -> str:
    metadata = message.get("metadata")
    return str(metadata.get("request_id") if isinstance(metadata, dict) else None)
