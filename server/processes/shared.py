"""Names that processes share: of ports and of models; the messages of every control channel."""

from __future__ import annotations

from server.configuration.models_file import ModelEntry
from server.coordination.messages import Answer, Notice, RefuseHint, Request
from server.processes.messages import OF_PROCESSES

HTTP, VOSK = "http", "vosk"
MESSAGES = OF_PROCESSES | Request | Notice | Answer | RefuseHint


def name_of(entry: ModelEntry | None) -> str:
    """Return the name by which processes ask for a model; empty for the one that no entry names."""
    return "" if entry is None else entry.name
