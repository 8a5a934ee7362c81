"""Web origins: which pages may use the server from a browser.

A browser names the page in `Origin`, which the page cannot forge; clients that send none are not checked.
Source: RFC 6454; for the handshake RFC 6455, 10.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from server.errors import NotAllowed, SettingsError
from server.settings import Settings

ANY = "*"
OPAQUE = "null"  # of files and of sandboxed frames
DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(text: str) -> str:
    """Return a configured origin in the form that browsers send. Raises: ValueError."""
    text = text.strip()
    if text in (ANY, OPAQUE):
        return text
    parts = urlsplit(text)
    if (
        parts.scheme not in DEFAULT_PORTS
        or not parts.hostname
        or parts.path.strip("/")
        or parts.query
        or parts.username
    ):
        raise ValueError("an origin is *, null, or a scheme and a host such as https://example.org")
    default = parts.port in (None, DEFAULT_PORTS[parts.scheme])
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if default else f"{parts.scheme}://{host}:{parts.port}"


def allowed_origins(settings: Settings) -> frozenset[str]:
    """Read the operator's list. Raises: SettingsError."""
    try:
        return frozenset(origin_of(text) for text in settings.allowed_origins)
    except ValueError as error:
        raise SettingsError(f"allowed_origins: {error}") from None


def allow_pages(app: FastAPI, settings: Settings) -> None:
    """Add CORS headers for the origins of the operator's list. Raises: SettingsError."""
    allowed = allowed_origins(settings)
    if allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(allowed),
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # SDKs in browsers send headers of their own, such as x-stainless-lang
            expose_headers=["dg-error", "dg-request-id", "Retry-After", "x-ignored-params", "x-warnings"],
        )


def check_origin(given: Sequence[str], host: str, allowed: AbstractSet[str]) -> None:
    """Check that a page was served by this server, or is on the list. Raises: NotAllowed.

    `given` are the request's `Origin` headers, `host` is its `Host`. The scheme is not compared: behind a proxy that
    terminates TLS the page's differs from ours.
    """
    if not given or ANY in allowed:
        return
    try:
        (text,) = given
        origin = origin_of(text)
    except ValueError:
        raise NotAllowed("the Origin of this page cannot be read") from None
    same_host = origin != OPAQUE and origin.partition("://")[2] == _without_default_port(host.lower(), origin)
    if not same_host and origin not in allowed:
        raise NotAllowed("this server does not serve pages of this origin; see allowed_origins")


def _without_default_port(host: str, origin: str) -> str:
    scheme = origin.partition("://")[0]
    return host.removesuffix(f":{DEFAULT_PORTS.get(scheme, 0)}")
