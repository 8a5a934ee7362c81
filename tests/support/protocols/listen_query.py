"""Parser of `/v1/listen` queries with the models of a test server."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from server.protocols.deepgram.query import ListenRequest, parse_query

RAW = "encoding=linear16&sample_rate=16000"


def query(text: str, **options: Any) -> ListenRequest:
    """Parse a query string. Raises: BadParameter."""
    return parse_query(parse_qsl(text, keep_blank_values=True), max_channels=2, **options)
