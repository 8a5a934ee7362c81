"""Receipts with the messages that carry them, as recorded by a client or kept in a vCon document. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from server.receipts.keys import BadSignature, payload_of
from server.receipts.receipt import VERSION, Receipt, Setup, ShownWord


class BadReceipt(Exception):
    """Messages or a document from which no receipts can be read; the message says why."""


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
        return [_word(word) for word in self._alternative["words"]]

    @property
    def transcript(self) -> str:
        """The transcript of the message. Raises: BadReceipt."""
        return str(self._alternative["transcript"])

    @property
    def _alternative(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.message["channel"]["alternatives"][0]
        except (KeyError, IndexError, TypeError):
            raise BadReceipt("a message with a receipt has no transcript") from None
        if not isinstance(found, dict) or not {"words", "transcript"} <= found.keys():
            raise BadReceipt("a message with a receipt has no words")
        return found


@dataclass(frozen=True, slots=True)
class Recorded:
    """The receipts of one stream in the order of their messages, at least one."""

    entries: tuple[Entry, ...]

    @classmethod
    def of_messages(cls, messages: Iterable[Any]) -> Recorded:
        """Take those of the messages that have receipts; one that came twice counts once. Raises: BadReceipt."""
        entries: list[Entry] = []
        seen: set[str] = set()
        for message in messages:
            signed = message.get("receipt") if isinstance(message, dict) else None
            if isinstance(signed, str) and signed not in seen:
                seen.add(signed)
                entries.append(_entry(signed, message))
        if not entries:
            raise BadReceipt("no receipts: record the messages of a stream with receipt=true, one a line")
        return cls(tuple(entries))

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
        found = self.entries[-1].receipt.closed
        return found if isinstance(found, str) else None

    @property
    def finals(self) -> Sequence[Entry]:
        """The entries of finals."""
        return [entry for entry in self.entries if not isinstance(entry.receipt.final, msgspec.UnsetType)]


def read_recorded(text: str) -> Recorded:
    """Read a vCon document, or recorded messages: one a line, or a JSON list. Raises: BadReceipt."""
    try:
        document = json.loads(text)
    except ValueError:
        return Recorded.of_messages(_lines(text))
    if isinstance(document, dict) and "analysis" in document:
        document = messages_of(document)
    return Recorded.of_messages(document if isinstance(document, list) else [document])


def messages_of(vcon: dict[str, Any]) -> list[Any]:
    """Return the messages in a vCon document. Raises: BadReceipt."""
    for analysis in vcon["analysis"] if isinstance(vcon["analysis"], list) else ():
        body = analysis.get("body") if isinstance(analysis, dict) else None
        if isinstance(body, dict) and isinstance(body.get("messages"), list):
            return list(body["messages"])
    raise BadReceipt("the vCon document has no receipts of tutti")


def _lines(text: str) -> list[Any]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError:
            raise BadReceipt(f"line {number} is not JSON") from None
    return found


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
