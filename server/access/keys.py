"""API keys and tokens: the forms in which clients send them, and the file of keys, read again when it changes.

A key or token is never logged and never repeated.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from server.access.origins import origin_of
from server.access.tokens import Tokens, looks_like_token
from server.errors import NotAuthorised, SettingsError

LOOK_EVERY_S = 1.0
MAX_STREAMS = 100_000  # of a key: more is a typing error
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,6}")

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.keys")


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is let in. `streams` None: the server's default; `origins` None: the server's list."""

    digest: bytes = field(repr=False)
    name: str = ""
    streams: int | None = None
    origins: frozenset[str] | None = None

    @classmethod
    def of(cls, secret: str) -> Key:
        """A key that is known in plain."""
        return cls(hashlib.sha256(secret.encode()).digest())

    @property
    def id(self) -> str:
        """Names the key on every replica that knows it, and tells nothing of it: not even its digest."""
        return base64.urlsafe_b64encode(hashlib.sha256(b"tutti key" + self.digest).digest()[:12]).decode()


def parse_keys(text: str, source: str) -> tuple[Key, ...]:
    """Read the lines of a file; `#` begins a comment. Raises: SettingsError, naming the line but not its content."""
    keys: dict[bytes, Key] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            key = _parse_line(words)
        except ValueError as error:
            raise SettingsError(f"{source}:{number}: {error}") from None
        if key.digest in keys:
            raise SettingsError(f"{source}:{number}: a digest that stands above already")
        keys[key.digest] = key
    return tuple(keys.values())


def _parse_line(words: list[str]) -> Key:
    if not _DIGEST.fullmatch(words[0]):
        raise ValueError("not a sha256 digest in hexadecimal")
    name, streams, origins = "", None, None
    for word in words[1:]:
        field, equals, value = word.partition("=")
        if not equals and not name and _NAME.fullmatch(word):
            name = word
        elif field == "streams" and streams is None and _NUMBER.fullmatch(value) and 0 < int(value) <= MAX_STREAMS:
            streams = int(value)
        elif field == "origins" and origins is None:
            origins = frozenset(origin_of(item) for item in value.split(","))
        else:
            raise ValueError("after the digest come a name, streams=N and origins=…, each once at most")
    return Key(bytes.fromhex(words[0]), name, streams, origins)


class KeysFile:
    """The keys of one file, as it is now. A file that cannot be read keeps the keys that were read before."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Raises: SettingsError when the file cannot be read, or has no key in it, which would let everybody in."""
        self._path = path
        self._clock = clock
        self._looked_s = clock()
        self._seen = self._stamp()
        self._keys = self._read()

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the file; changes are seen within a second."""
        now = self._clock()
        if now - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self.reload()
        return self._keys

    def reload(self) -> None:
        """Read the file now, changed or not."""
        try:
            self._keys = self._read()
        except SettingsError as error:
            _log.error("keys not read again, the old ones hold", reason=str(error))
        else:
            _log.info("keys read again", file=self._path.name, keys=len(self._keys))

    def _read(self) -> tuple[Key, ...]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot read {self._path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise SettingsError(f"{self._path}: not a text file") from None
        keys = parse_keys(text, str(self._path))
        if not keys:
            raise SettingsError(f"{self._path}: no key in it, which would let everybody in")
        return keys

    def _stamp(self) -> tuple[int, int, int] | None:
        """What differs when the file was written to or replaced; None while there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


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
        """Take plain keys, and the file of `server.access.keys`. Raises: SettingsError."""
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
