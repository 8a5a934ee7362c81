"""Short-lived tokens for browsers: the id of an API key and an expiry, signed.

All replicas with the same `token_keys` accept a token. The first key signs, all keys verify, so that they can be
rotated. Source: RFC 7519, and Deepgram's page on token-based authentication.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

import jwt
import structlog

from server.errors import NotAuthorized, SettingsError

AUDIENCE = "tutti"
ALGORITHM = "HS256"
MIN_SECRET_BYTES = 32  # RFC 7518, section 3.2: not shorter than the hash
LEEWAY_S = 5.0  # for clock differences between replicas
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.tokens")


def looks_like_token(text: str) -> bool:
    """Whether a text has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


class Tokens:
    """Signs and verifies tokens."""

    def __init__(self, secrets_: Iterable[str]) -> None:
        """Without secrets one is generated, whose tokens only this process accepts. Raises: SettingsError."""
        chosen = tuple(secrets_)
        if any(len(secret.encode()) < MIN_SECRET_BYTES for secret in chosen):
            raise SettingsError(f"token keys must have at least {MIN_SECRET_BYTES} bytes")
        self._secrets = chosen or (secrets.token_urlsafe(MIN_SECRET_BYTES),)
        self._own = not chosen

    def mint(self, key_id: str, ttl_s: int, now_s: float) -> str:
        """Return a signed token for a key; `now_s` is in seconds since 1970."""
        if self._own:
            self._own = False  # warn only once
            _log.warning("token_keys is not set: tokens are signed with a temporary key and valid only on this server")
        claims = {"aud": AUDIENCE, "sub": key_id, "iat": int(now_s), "exp": int(now_s) + ttl_s}
        return jwt.encode(claims, self._secrets[0], ALGORITHM)

    def verify(self, token: str) -> str:
        """Return the id of the key in a token. Raises: NotAuthorized."""
        expired = False
        for secret in self._secrets:
            try:
                claims = jwt.decode(
                    token,
                    secret,
                    algorithms=[ALGORITHM],
                    audience=AUDIENCE,
                    leeway=LEEWAY_S,
                    options={"require": ["aud", "exp", "iat", "sub"]},
                )
            except jwt.ExpiredSignatureError:
                expired = True
            except jwt.InvalidTokenError:
                continue
            else:
                return str(claims["sub"])
        raise NotAuthorized("The token has expired." if expired else "Invalid credentials.") from None
