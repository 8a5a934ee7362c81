"""The queue of callbacks on disk: what was accepted is there until it is delivered, also after a killed process.

An entry has up to three files: `ID.json`, the entry itself, written last and removed first; `ID.audio`, a recording
that is not recognized yet; `ID.body`, the result to post. A process locks the entries that it works on, and the kernel
frees them when it ends, so that several processes can share a folder. Blocking; used by one thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from server.errors import SettingsError

FILE_MODE = 0o600  # recordings and text
INCOMPLETE_S = 3_600.0  # age at which files without an entry are removed: of a process that was killed while it wrote
Part = Literal["audio", "body"]


class CallbackEntry(msgspec.Struct, frozen=True):
    """One result to post. Entries of one `call` are delivered in the order of their ids.

    `query` is that of a `recording`. `client` is the address of who sent it.
    """

    id: str
    call: str
    url: str
    method: str
    key_id: str
    client: str = ""
    created: str = ""
    query: tuple[tuple[str, str], ...] = ()
    recording: bool = False


class CallbackFolder:
    """The entries that this process works on, and those without a process."""

    def __init__(self, path: Path) -> None:
        """Create the folder if needed. Raises: SettingsError."""
        self._path = path
        self._locks: dict[str, int] = {}
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SettingsError(f"cannot create the folder {path}: {error.strerror}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise SettingsError(f"cannot write to the folder {path}; check its permissions")

    def add(self, entry: CallbackEntry, part: Part, content: bytes) -> None:
        """Store an entry that this process works on. Raises: OSError: nothing is left of it."""
        try:
            os.close(self._write(entry.id, part, content))
            self._locks[entry.id] = self._write(entry.id, "json", msgspec.json.encode(entry))
        except OSError:
            self.remove(entry.id)
            raise

    def resolve(self, entry_id: str, body: bytes) -> None:
        """Store the result of a recording, instead of the recording. Raises: OSError."""
        os.close(self._write(entry_id, "body", body))
        self._file(entry_id, "audio").unlink(missing_ok=True)

    def read(self, entry_id: str, part: Part) -> bytes | None:
        """Return a part of an entry, None if it has none. Raises: OSError."""
        try:
            return self._file(entry_id, part).read_bytes()
        except FileNotFoundError:
            return None

    def remove(self, entry_id: str) -> None:
        """Remove an entry."""
        for suffix in ("json", "audio", "body"):
            with contextlib.suppress(OSError):
                self._file(entry_id, suffix).unlink(missing_ok=True)
        descriptor = self._locks.pop(entry_id, None)
        if descriptor is not None:
            os.close(descriptor)

    def claim(self) -> list[CallbackEntry]:
        """Lock the entries that no process works on, and return them by their ids. Raises: OSError."""
        claimed = []
        for path in self._path.glob("*.*"):
            if path.suffix != ".json" and not self._file(path.name.partition(".")[0], "json").exists():
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > INCOMPLETE_S:
                        path.unlink()
        for path in sorted(self._path.glob("*.json")):
            if path.stem not in self._locks and (descriptor := _locked(path)) is not None:
                try:
                    claimed.append(msgspec.json.decode(path.read_bytes(), type=CallbackEntry))
                except (OSError, msgspec.DecodeError):
                    os.close(descriptor)
                else:
                    self._locks[path.stem] = descriptor
        return claimed

    def close(self) -> None:
        """Leave the entries to another process."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()

    def _file(self, entry_id: str, suffix: str) -> Path:
        return self._path / f"{entry_id}.{suffix}"

    def _write(self, entry_id: str, suffix: str, content: bytes) -> int:
        """Write a file as a whole or not at all, onto the device; return its descriptor, locked. Raises: OSError."""
        path = self._file(entry_id, f"{suffix}.new")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(descriptor)
            path.rename(self._file(entry_id, suffix))
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return descriptor


def _locked(path: Path) -> int | None:
    """Return the descriptor of a file locked by it, None if another process has it or it was removed."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    os.close(descriptor)
    return None
