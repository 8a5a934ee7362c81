"""vCon documents of calls with receipts: the unsigned form, whose analysis has the signed receipts. Pure.

Source: draft-ietf-vcon-vcon-core-03, "The JSON format for vCon - Conversation Data Container".
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from typing import Any

from server.receipts.receipt import FinalText
from server.receipts.recorded import Entry, Recorded

SCHEMA_VERSION = "0.4.0"
SCHEMA = "tutti-receipts-1"


def vcon_of(recorded: Recorded, recording: tuple[str, bytes] | None = None) -> dict[str, Any]:
    """Return the document of a call; `recording` is the name and the content of its file, which is not included."""
    first, channels = recorded.first, _channels(recorded)
    dialog: dict[str, Any] = {
        "type": "recording",
        "start": first.created,
        "duration": _duration_s(recorded),
        "parties": list(range(channels)),
    }
    if recording is not None:
        name, content = recording
        dialog |= {"filename": name, "content_hash": _content_hash(content)}
    return {
        "vcon": SCHEMA_VERSION,
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, first.stream)),
        "created_at": first.created,
        "parties": [{"name": "anonymous"} for _ in range(channels)],
        "dialog": [dialog],
        "analysis": [
            {
                "type": "transcript",
                "dialog": 0,
                "mediatype": "application/json",
                "vendor": "tutti",
                "product": f"tutti {recorded.setup.software}",
                "schema": SCHEMA,
                "encoding": "json",
                "body": {
                    "transcript": "\n".join(_lines(recorded)),
                    "messages": [entry.message for entry in recorded.entries],
                },
            }
        ],
    }


def _channels(recorded: Recorded) -> int:
    """Return the number of recognized channels."""
    query = dict(recorded.setup.query)
    return int(query.get("channels", "1")) if query.get("multichannel", "false").lower() in ("true", "1") else 1


def _duration_s(recorded: Recorded) -> float:
    last, rate = recorded.entries[-1].receipt.audio, int(dict(recorded.setup.query)["sample_rate"])
    return round((last.end - last.begin) / rate, 6)


def _lines(recorded: Recorded) -> list[str]:
    return [text for text in map(_line, recorded.finals) if text]


def _line(entry: Entry) -> str:
    final, text = entry.receipt.final, entry.transcript
    assert isinstance(final, FinalText), "an entry of a final"
    return f"{final.channel}: {text}" if text else ""


def _content_hash(content: bytes) -> str:
    digest = hashlib.sha512(content).digest()
    return f"sha512-{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
