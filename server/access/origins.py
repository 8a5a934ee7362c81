"""Check of web origins: which pages may use the server from a browser.

Browsers send the page's origin in `Origin`, which the page cannot forge; clients without the header are not checked.
Source: RFC 6454; for the handshake RFC 6455, section 10.2.

A page of another site can make its own name resolve to this server (DNS rebinding), so that its origin is the server's.
Where no key protects the server, the server's origin counts only if its name is a private one, `is_private_name`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from server.errors import NotAllowed, SettingsError
from server.settings import Settings

ANY = "*"
OPAQUE = "null"  # origin of local files and sandboxed frames
LOCAL_FILES = "file://"  # what Electron sends for them
DEFAULT_PORTS = {"http": 80, "https": 443}
PRIVATE_DOMAINS = frozenset({"localhost", "local", "internal", "svc", "test"})
"""Domains that are not sold. Source: RFC 6761, RFC 6762, ICANN resolution 2024.07.29.06; svc is Kubernetes'."""


def origin_of(text: str) -> str:
    """Return an origin in the form that browsers send, also of an extension or app. Raises: ValueError."""
    text = text.strip()
    if text in (ANY, OPAQUE, LOCAL_FILES):
        return OPAQUE if text == LOCAL_FILES else text
    parts = urlsplit(text)
    if not parts.scheme or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise ValueError("invalid origin: expected *, null, or a scheme and a host such as https://example.org")
    default = parts.port in (None, DEFAULT_PORTS.get(parts.scheme))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if default else f"{parts.scheme}://{host}:{parts.port}"


def allowed_origins(settings: Settings) -> frozenset[str]:
    """Return the origins in the settings. Raises: SettingsError."""
    try:
        return frozenset(origin_of(text) for text in settings.allowed_origins)
    except ValueError as error:
        raise SettingsError(f"allowed_origins: {error}") from None


def allow_pages(app: FastAPI, settings: Settings) -> None:
    """Add CORS headers for the origins in the settings. Raises: SettingsError."""
    allowed = allowed_origins(settings)
    if allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(allowed),
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # browser SDKs send their own headers, such as x-stainless-lang
            expose_headers=["dg-error", "dg-request-id", "Retry-After", "x-ignored-params", "x-warnings"],
        )


def is_private_name(host: str) -> bool:
    """Whether the name in a `Host` header cannot be registered by another site: an address, or not in public DNS."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    if "." not in name or name.rpartition(".")[2] in PRIVATE_DOMAINS:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(headers: Sequence[str], host: str, allowed: AbstractSet[str], *, keyless: bool) -> None:
    """Check that a page was served by this server or its origin is allowed. Raises: NotAllowed.

    `headers` are the request's `Origin` headers, `host` is its `Host`; `keyless`: the server needs no key. The scheme
    is not compared: a proxy that terminates TLS changes it.
    """
    if not headers or ANY in allowed:
        return
    try:
        (text,) = headers
        origin = origin_of(text)
    except ValueError:
        raise NotAllowed("the Origin header is invalid") from None
    scheme, _, page_host = origin.partition("://")
    same_host = scheme in DEFAULT_PORTS and page_host == host.lower().removesuffix(f":{DEFAULT_PORTS[scheme]}")
    own = same_host and (not keyless or is_private_name(host))
    if not own and origin not in allowed:
        raise NotAllowed(f"origin {origin[:64]!a} is not allowed by this server; add it to allowed_origins")
