"""The file of API keys: one line a key, its sha256 digest and what it may do. Read again when it changes.

    # digest, then in any order: a name, streams=N, origins=https://a.example,https://b.example
    5e88…d8  shop  streams=20  origins=https://shop.example

Knows no request. It is looked at when a key is to be checked, at most once a second: no timer, no thread.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from server.access.origins import origin_of
from server.errors import SettingsError

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
