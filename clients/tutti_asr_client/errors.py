"""Errors of the client, with who must act.

ClientError
├── AudioError         a file cannot be read as audio            → the user: give another file
├── BadUrl             the address is invalid                    → the user: give another URL
├── Unreachable        no server answered at the address         → the user or the operator
├── Refused            the server answered with an HTTP error    → by status: key, query, or try later
├── ClosedAbnormally   the connection ended early                → by code: retry on 1012 and 1013
├── BadMessage         the server sent an invalid message        → report it as a bug
└── Interrupted        the user stopped before the first audio   → none
"""

from __future__ import annotations

from pathlib import Path

NORMAL_CLOSE = 1000
"""Close code after which a transcript is complete (RFC 6455 §7.4.1)."""


class ClientError(Exception):
    """Base of all errors that this package raises."""


class AudioError(ClientError):
    """A file cannot be read as audio."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class BadUrl(ClientError):
    """An invalid server address."""


def without_secrets(url: str) -> str:
    """Return an address for display: without its query and user, which may contain keys."""
    location = url.partition("?")[0].partition("#")[0]
    scheme, colon, rest = location.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{colon}{host.rpartition('@')[2]}{slash}{path}"


class Unreachable(ClientError):
    """No server could be reached at the address."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"no server at {without_secrets(url)}: {problem}")
        self.url = url


class Refused(ClientError):
    """The server refused the handshake; `retry_after_s` is its Retry-After, if it sent one."""

    def __init__(self, status: int, retry_after_s: float | None, message: str) -> None:
        advice = "" if retry_after_s is None else f" (try again in {retry_after_s:g} s)"
        super().__init__(f"refused with HTTP {status}: {message}{advice}")
        self.status = status
        self.retry_after_s = retry_after_s
        self.message = message


class ClosedAbnormally(ClientError):
    """The connection ended with a code other than 1000, or before all audio was sent."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed by the server with code {code}" + (f": {reason}" if reason else ""))
        self.code = code
        self.reason = reason


class BadMessage(ClientError):
    """An invalid message of the server: not JSON, or a known type with wrong fields."""


class Interrupted(ClientError):
    """The user interrupted before the first audio was sent."""
