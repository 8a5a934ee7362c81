"""API keys: how clients send keys and tokens, files of secrets, and the keys file, which is reloaded on change.

A key or token is never logged or included in an error.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from starlette.requests import HTTPConnection

from model.text.files import read_lines, stamp_of
from server.access.origins import origin_of
from server.access.tokens import Tokens, looks_like_token
from server.errors import NotAuthorized, SettingsError
from server.text.redaction_kinds import Redaction

CHECK_EVERY_S = 1.0
MAX_STREAMS = 100_000  # per key: more is a typing error
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,6}")

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.keys")


@dataclass(frozen=True, slots=True)
class Key:
    """A key that the server accepts.

    `streams` is the number of calls that may be open, `origins` the allowed page origins; None: the server's default.
    `redact` is masked in all results, whatever the client asks for.
    """

    digest: bytes = field(repr=False)
    name: str = ""
    streams: int | None = None
    origins: frozenset[str] | None = None
    redact: frozenset[Redaction] = frozenset()

    @classmethod
    def of(cls, secret: str) -> Key:
        """Return the key with this secret."""
        return cls(hashlib.sha256(secret.encode()).digest())

    @property
    def id(self) -> str:
        """Public id of the key, the same on every replica; it reveals neither the key nor its digest."""
        return base64.urlsafe_b64encode(hashlib.sha256(b"tutti key" + self.digest).digest()[:12]).decode()


def read_secrets(kind: str, first: Iterable[str], file: Path | None) -> list[tuple[str, str]]:
    """Return the first secrets, then those of a file, each with a location for error messages.

    A file has one secret per line; blank lines and lines that begin with `#` are skipped. Raises: SettingsError.
    """
    secrets = [(f"{kind} {number}", secret) for number, secret in enumerate(first, start=1)]
    if file is None:
        return secrets
    lines = [line.strip() for line in read_lines(file, SettingsError)]
    in_file = [(f"{file}:{number}", line) for number, line in enumerate(lines, start=1) if line and line[0] != "#"]
    if not in_file:
        raise SettingsError(f"{file}: contains no key; add one per line")
    return secrets + in_file


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read. Raises: OSError: the file is as before."""
    descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:100]}")  # readable by its owner alone
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        Path(part).replace(file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def parse_keys(lines: Iterable[tuple[str, str]]) -> tuple[Key, ...]:
    """Parse lines of a keys file, each with its location. Raises: SettingsError with the location, not the content."""
    keys: dict[bytes, Key] = {}
    for location, line in lines:
        try:
            key = _parse_line(line.partition("#")[0].split())
        except ValueError as error:
            raise SettingsError(f"{location}: {error}") from None
        if key.digest in keys:
            raise SettingsError(f"{location}: duplicate digest; remove one of the two lines")
        keys[key.digest] = key
    return tuple(keys.values())


def _parse_line(words: list[str]) -> Key:
    if not _DIGEST.fullmatch(words[0]):
        raise ValueError("expected a SHA-256 digest of 64 hexadecimal digits")
    name, streams, origins, redact = "", None, None, frozenset[Redaction]()
    for word in words[1:]:
        field, equals, value = word.partition("=")
        if not equals and not name and NAME.fullmatch(word):
            name = word
        elif field == "streams" and streams is None and _NUMBER.fullmatch(value) and 0 < int(value) <= MAX_STREAMS:
            streams = int(value)
        elif field == "origins" and origins is None:
            origins = frozenset(origin_of(item) for item in value.split(","))
        elif field == "redact" and not redact and set(value.split(",")) <= set(Redaction):
            redact = frozenset(map(Redaction, value.split(",")))
        else:
            raise ValueError("expected DIGEST [NAME] [streams=N] [origins=…] [redact=…], each at most once")
    return Key(bytes.fromhex(words[0]), name, streams, origins, redact)


class KeysFile:
    """The keys of one file, reloaded when it changes. If that fails, the previous keys stay valid."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Read the file. Raises: SettingsError if it cannot be read or has no key, which would open the server."""
        self._path = path
        self._clock = clock
        self._checked_s = clock()
        self._read_stamp = stamp_of(path)
        self._keys = parse_keys(read_secrets("key", (), path))

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the file, at most `CHECK_EVERY_S` old."""
        now = self._clock()
        if now - self._checked_s >= CHECK_EVERY_S:
            self._checked_s = now
            if stamp_of(self._path) != self._read_stamp:
                self.reload()
        return self._keys

    def reload(self) -> None:
        """Read the file even if it has not changed; log the result."""
        self._read_stamp = stamp_of(self._path)
        try:
            self._keys = parse_keys(read_secrets("key", (), self._path))
        except SettingsError as error:
            _log.error("keys file not reloaded, the previous keys stay valid", reason=str(error))
        else:
            _log.info("keys file reloaded", file=self._path.name, keys=len(self._keys))


BEARER = "bearer"
_SCHEMES = ("token", BEARER)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Key or token of a request.

    `subprotocol` is the item to echo, which some clients require; it is never the key. `bearer`: the scheme may also
    carry a token.
    """

    key: str | None
    subprotocol: str | None
    bearer: bool = False

    @classmethod
    def read(cls, authorization: str | None, subprotocols: Sequence[str]) -> Credentials:
        """Return the key in the header, else in the subprotocol item after `token` or `bearer`."""
        offered, offered_key = None, None
        for item, following in itertools.zip_longest(subprotocols, subprotocols[1:]):
            if item.lower() in _SCHEMES:
                offered, offered_key = item, following
                break
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() in _SCHEMES and key.strip():
            return cls(key.strip(), offered, scheme.lower() == BEARER)
        return cls(offered_key, offered, offered is not None and offered.lower() == BEARER)

    @classmethod
    def of_header_or_query(cls, connection: HTTPConnection) -> Credentials:
        """Return the key in the header, else in `?key=`, for protocols whose clients cannot set headers."""
        in_header = cls.read(connection.headers.get("authorization"), ())
        return in_header if in_header.key is not None else cls(connection.query_params.get("key"), None)

    def __repr__(self) -> str:
        """Return a text without the key, for tracebacks and logs."""
        return f"Credentials(key={'…' if self.key else None}, subprotocol={self.subprotocol!r}, bearer={self.bearer})"


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request. With `by_token` the `key` is the token's issuer; on a server without keys it is empty."""

    key: Key
    by_token: bool = False


ANYBODY = Caller(Key(b"", "anybody"))


class KeyRing:
    """All keys that the server accepts. An empty ring accepts every request."""

    def __init__(self, keys: Iterable[Key], file: KeysFile | None = None, tokens: Tokens | None = None) -> None:
        self._plain = tuple(keys)
        self._file = file
        self.tokens = tokens or Tokens(())

    @classmethod
    def load(
        cls,
        keys: Iterable[str],
        file: Path | None,
        tokens: Tokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> KeyRing:
        """Build a ring from plain keys and a keys file. Raises: SettingsError."""
        return cls([Key.of(key) for key in keys], None if file is None else KeysFile(file, clock), tokens)

    @property
    def is_open(self) -> bool:
        """Whether the ring is empty and accepts every request."""
        return not self._plain and self._file is None

    def reload(self) -> None:
        """Reload the keys file even if it has not changed."""
        if self._file is not None:
            self._file.reload()

    def check(self, credentials: Credentials) -> Caller:
        """Return the caller with these credentials. Raises: NotAuthorized."""
        if self.is_open:
            return ANYBODY
        if credentials.key is None:
            raise NotAuthorized("Invalid credentials.")
        if credentials.bearer and looks_like_token(credentials.key):
            caller = self._issuer(self.tokens.verify(credentials.key))
        else:
            caller = self._owner(credentials.key)
        if caller is None:
            raise NotAuthorized("Invalid credentials.")
        return caller

    def caller_of(self, key_id: str) -> Caller:
        """Return the caller with the key of this id, for work that outlasts its request. Raises: NotAuthorized."""
        caller = ANYBODY if self.is_open else self._issuer(key_id)
        if caller is None:
            raise NotAuthorized("Invalid credentials.")
        return caller

    @property
    def _keys(self) -> tuple[Key, ...]:
        return self._plain if self._file is None else self._plain + self._file.keys

    def _owner(self, secret: str) -> Caller | None:
        """Return the owner of a key; all digests are compared, in constant time."""
        digest = hashlib.sha256(secret.encode(errors="backslashreplace")).digest()
        owner: Caller | None = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                owner = Caller(key)
        return owner

    def _issuer(self, key_id: str) -> Caller | None:
        """Return the caller for a token of this key, None if the key is no longer accepted."""
        return next((Caller(key, by_token=True) for key in self._keys if key.id == key_id), None)
