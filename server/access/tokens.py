"""Short-lived tokens for browsers: a signed name of the key that asked for one. Knows no request.

Every replica with the same `token_keys` accepts a token; the first of them signs, all verify, so that they can be
replaced one after another. Source: RFC 7519, and Deepgram's page on token-based authentication.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path

import jwt
import structlog

from server.errors import NotAuthorised, SettingsError

AUDIENCE = "tutti"
ALGORITHM = "HS256"
MIN_SECRET_BYTES = 32  # RFC 7518 §3.2: no shorter than the hash
LEEWAY_S = 5.0  # between the clocks of two replicas
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.tokens")


def looks_like_token(text: str) -> bool:
    """Whether this is a token rather than an API key."""
    return _TOKEN.fullmatch(text) is not None


class Tokens:
    """Signs and reads tokens."""

    def __init__(self, secrets_: Iterable[str]) -> None:
        """Without a secret one is made up: its tokens are good at this process alone. Raises: SettingsError."""
        given = tuple(secrets_)
        if any(len(secret.encode()) < MIN_SECRET_BYTES for secret in given):
            raise SettingsError(f"a token key needs {MIN_SECRET_BYTES} bytes at least")
        self._secrets = given or (secrets.token_urlsafe(MIN_SECRET_BYTES),)
        self._own = not given

    @classmethod
    def load(cls, given: Iterable[str], file: Path | None) -> Tokens:
        """Take secrets, and a file of one a line (`#` comments). Raises: SettingsError."""
        if file is None:
            return cls(given)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read {file}") from error
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise SettingsError(f"{file}: no token key in it")
        return cls([*given, *found])

    def mint(self, key_id: str, ttl_s: int, now_s: float) -> str:
        """Sign a token for a key; `now_s` is the time of day."""
        if self._own:
            self._own = False  # said once
            _log.warning("tokens are signed with a key of this process; set token_keys for several replicas")
        claims = {"aud": AUDIENCE, "sub": key_id, "iat": int(now_s), "exp": int(now_s) + ttl_s}
        return jwt.encode(claims, self._secrets[0], ALGORITHM)

    def verify(self, token: str) -> str:
        """Return the id of the key that a token stands for. Raises: NotAuthorised."""
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
        raise NotAuthorised("The token has expired." if expired else "Invalid credentials.") from None
