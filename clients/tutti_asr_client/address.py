"""Server addresses: builds the URLs of endpoints from the address that a user gives. Pure functions."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tutti_asr_client.errors import BadUrl, without_secrets

WEBSOCKET_SCHEME = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}
LISTEN_PATH = "/v1/listen"
MAX_SHOWN = 200  # longest excerpt of an address in an error

QueryValue = str | int | float | bool | Sequence[str]


def listen_url(url: str, query: Mapping[str, QueryValue]) -> str:
    """Return the WebSocket URL of `/v1/listen` on the server at `url`.

    `url` may be `host:port`, `ws://`, `wss://`, `http://` or `https://`, with or without the path.
    A query in it is kept; values in `query` take precedence.

    Raises:
        BadUrl: another scheme, or no host.
    """
    scheme, netloc, path, old_query = _split(url)
    path = path.rstrip("/")
    if not path.endswith(LISTEN_PATH):
        path += LISTEN_PATH
    own_query = [(key, value) for key, value in parse_qsl(old_query, keep_blank_values=True) if key not in query]
    return urlunsplit((scheme, netloc, path, urlencode(own_query + query_pairs(query)), ""))


def http_url(url: str, path: str) -> str:
    """Return the URL of another endpoint, such as `/metrics`, on the server at `url`.

    Raises:
        BadUrl: as `listen_url`.
    """
    scheme, netloc, prefix, _ = _split(url)
    prefix = prefix.rstrip("/").removesuffix(LISTEN_PATH)
    return urlunsplit(("https" if scheme == "wss" else "http", netloc, prefix + path, "", ""))


def is_loopback(url: str) -> bool:
    """Return whether the address is on this machine; no proxy is used then."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> tuple[str, str, str, str]:
    excerpt = repr(without_secrets(url)[:MAX_SHOWN])
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        parts.port  # noqa: B018 - the property raises on a port that is not a number
    except ValueError as error:
        raise BadUrl(f"address {excerpt}: {error}; for example ws://127.0.0.1:8080") from error
    if parts.scheme not in WEBSOCKET_SCHEME:
        raise BadUrl(f"address {excerpt}: the scheme must be one of {', '.join(WEBSOCKET_SCHEME)}")
    if not parts.hostname or any(character.isspace() for character in parts.netloc):
        raise BadUrl(f"address {excerpt}: the host is missing or invalid; for example ws://127.0.0.1:8080")
    return WEBSOCKET_SCHEME[parts.scheme], parts.netloc, parts.path, parts.query


def query_pairs(query: Mapping[str, QueryValue]) -> list[tuple[str, str]]:
    """Return query parameters as sent: lowercase booleans, one parameter for each item of a sequence."""
    pairs: list[tuple[str, str]] = []
    for key, value in query.items():
        if isinstance(value, bool):
            pairs.append((key, "true" if value else "false"))
        elif isinstance(value, str | int | float):
            pairs.append((key, str(value)))
        else:
            pairs.extend((key, item) for item in value)
    return pairs
