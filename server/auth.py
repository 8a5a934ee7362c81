"""Who may use the server: API keys, and the forms in which clients send them. Keys are never logged or repeated.

Source of the forms: protocols.md 3.2.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.errors import NotAuthorised, SettingsError

_SCHEMES = ("token", "bearer")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request offers. `subprotocol` is the item to echo: some clients fail without it, and it is not the key."""

    key: str | None
    subprotocol: str | None

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
            return cls(key.strip(), offered)
        return cls(offered_key, offered)

    def __repr__(self) -> str:
        """Keep the key out of tracebacks and logs."""
        return f"Credentials(key={'…' if self.key else None}, subprotocol={self.subprotocol!r})"


class KeyRing:
    """The keys that are let in, as sha256 digests. An empty ring lets everybody in."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = tuple(digests)

    @classmethod
    def load(cls, keys: Iterable[str], digest_file: Path | None) -> KeyRing:
        """Take plain keys, and a file of one sha256 hex digest a line (`#` comments). Raises: SettingsError."""
        digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        if digest_file is not None:
            digests += _read_digests(digest_file)
            if not digests:
                raise SettingsError(f"{digest_file}: no key in it, which would let everybody in")
        return cls(digests)

    def check(self, credentials: Credentials) -> None:
        """Raises: NotAuthorised. Every digest is compared, so that the time taken tells nothing."""
        if not self._digests:
            return
        given = hashlib.sha256((credentials.key or "").encode()).digest()
        known = sum(hmac.compare_digest(given, digest) for digest in self._digests)
        if credentials.key is None or not known:
            raise NotAuthorised("Invalid credentials.")


def _read_digests(path: Path) -> list[bytes]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    digests: list[bytes] = []
    for number, line in enumerate(lines, start=1):
        entry = line.split("#", 1)[0].strip()
        if entry and not _DIGEST.fullmatch(entry):
            raise SettingsError(f"{path}:{number}: not a sha256 digest in hexadecimal")
        if entry:
            digests.append(bytes.fromhex(entry))
    return digests
