"""Who calls: API keys and tokens, and the forms in which clients send them. Neither is ever logged or repeated.

Source of the forms: protocols.md 3.2.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.access.keys_file import Key, KeysFile
from server.access.tokens import Tokens, looks_like_token
from server.errors import NotAuthorised

BEARER = "bearer"
_SCHEMES = ("token", BEARER)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request offers. `subprotocol` is the item to echo: some clients fail without it, and it is not the key.

    `bearer` says that the key came under the scheme in which a token may come.
    """

    key: str | None
    subprotocol: str | None
    bearer: bool = False

    @classmethod
    def read(cls, authorization: str | None, subprotocols: Sequence[str]) -> Credentials:
        """Take the key from the header, else from the item behind `token` or `bearer` in the subprotocols."""
        offered, offered_key = None, None
        for item, following in itertools.zip_longest(subprotocols, subprotocols[1:]):
            if item.lower() in _SCHEMES:
                offered, offered_key = item, following
                break
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() in _SCHEMES and key.strip():
            return cls(key.strip(), offered, scheme.lower() == BEARER)
        return cls(offered_key, offered, offered is not None and offered.lower() == BEARER)

    def __repr__(self) -> str:
        """Keep the key out of tracebacks and logs."""
        return f"Credentials(key={'…' if self.key else None}, subprotocol={self.subprotocol!r}, bearer={self.bearer})"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from. `key` is that of the token's issuer where `by_token`; without keys it is nobody's."""

    key: Key
    by_token: bool = False


ANYBODY = Caller(Key(b"", "anybody"))


class KeyRing:
    """The keys that are let in. An empty ring lets everybody in."""

    def __init__(self, keys: Iterable[Key], file: KeysFile | None = None, tokens: Tokens | None = None) -> None:
        self._plain = tuple(keys)
        self._file = file
        self._tokens = tokens or Tokens(())

    @classmethod
    def load(
        cls,
        keys: Iterable[str],
        file: Path | None,
        tokens: Tokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> KeyRing:
        """Take plain keys, and the file of `server.access.keys_file`. Raises: SettingsError."""
        return cls([Key.of(key) for key in keys], None if file is None else KeysFile(file, clock), tokens)

    @property
    def tokens(self) -> Tokens:
        """What signs and reads tokens."""
        return self._tokens

    @property
    def is_open(self) -> bool:
        """Whether everybody is let in."""
        return not self._plain and self._file is None

    def reload(self) -> None:
        """Read the file again, whether or not it changed."""
        if self._file is not None:
            self._file.reload()

    def check(self, credentials: Credentials) -> Caller:
        """Say who it is. Raises: NotAuthorised."""
        if self.is_open:
            return ANYBODY
        if credentials.key is None:
            raise NotAuthorised("Invalid credentials.")
        if credentials.bearer and looks_like_token(credentials.key):
            caller = self._issuer(self._tokens.verify(credentials.key))
        else:
            caller = self._owner(credentials.key)
        if caller is None:
            raise NotAuthorised("Invalid credentials.")
        return caller

    @property
    def _keys(self) -> tuple[Key, ...]:
        return self._plain if self._file is None else self._plain + self._file.keys

    def _owner(self, secret: str) -> Caller | None:
        """Whoever has this key; every digest is compared, so that the time taken tells nothing."""
        given = hashlib.sha256(secret.encode(errors="backslashreplace")).digest()
        found: Caller | None = None
        for key in self._keys:
            if hmac.compare_digest(given, key.digest):
                found = Caller(key)
        return found

    def _issuer(self, key_id: str) -> Caller | None:
        """Whoever has a token of this key, if it still is one."""
        return next((Caller(key, by_token=True) for key in self._keys if key.id == key_id), None)
