"""What a recording of a call holds beyond its receipts: claims without a signature, and other unsigned parts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from server.receipts.recorded import Recorded

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
