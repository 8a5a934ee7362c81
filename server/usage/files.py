"""Files of a usage log: one at a time for each process, with a largest size and a largest number in the folder.

Several processes, also of several machines, may write to one folder: the name of a file has machine and process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from server.errors import SettingsError

PATTERN = "usage-*.jsonl"
FILE_MODE = 0o640

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.usage")


class UsageFiles:
    """The files that one process writes. Blocking; used by one thread."""

    def __init__(self, folder: Path, *, max_bytes: int, max_files: int) -> None:
        """Create the folder if needed. Raises: SettingsError."""
        self._folder = folder
        self._max_bytes, self._max_files = max_bytes, max_files
        self._fd: int | None = None
        self._path = folder
        self._size = 0
        self._number = 0
        began = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        self._stem = f"usage-{began}-{socket.gethostname() or 'host'}-{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"usage_log: cannot create the folder {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SettingsError(f"usage_log: cannot write to the folder {folder}; check its permissions")

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines, in as few files as possible. Raises: OSError; some lines may be written then."""
        waiting: list[bytes] = []
        size = 0
        for line in lines:
            if waiting and self._size + size + len(line) > self._max_bytes:
                self._append(b"".join(waiting))
                self.close()
                waiting, size = [], 0
            waiting.append(line)
            size += len(line)
        if waiting:
            self._append(b"".join(waiting))

    def sync(self) -> None:
        """Wait until the file is on its device. Raises: OSError."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Sync and close the file; the next line begins another one."""
        if self._fd is None:
            return
        fd, self._fd, self._size = self._fd, None, 0
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _append(self, data: bytes) -> None:
        if self._fd is not None and (self._size + len(data) > self._max_bytes or not os.fstat(self._fd).st_nlink):
            self.close()  # it is full, or was deleted
        fd = self._open() if self._fd is None else self._fd
        written = 0
        try:
            while written < len(data):
                written += os.write(fd, data[written:])
        except OSError:
            self._undo(fd)
            raise
        self._size += written

    def _undo(self, fd: int) -> None:
        """Remove what was written of a failed append, so that no line is incomplete; else begin another file."""
        try:
            os.ftruncate(fd, self._size)
        except OSError:
            with contextlib.suppress(OSError):
                self.close()

    def _open(self) -> int:
        fd = None
        while fd is None:
            self._path = self._folder / f"{self._stem}-{self._number:04d}.jsonl"
            self._number += 1
            with contextlib.suppress(FileExistsError):  # of a container with the same name and process id
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, FILE_MODE)
        self._fd, self._size = fd, 0
        self._delete_oldest()
        return fd

    def _delete_oldest(self) -> None:
        """Delete the files that were written longest ago, of any process, beyond the largest number."""
        ages: list[tuple[float, Path]] = []
        for path in self._folder.glob(PATTERN):
            with contextlib.suppress(OSError):  # another process may delete it at the same time
                ages.append((path.stat().st_mtime, path))
        ages.sort()
        for _, path in ages[: max(0, len(ages) - self._max_files)]:
            if path == self._path:
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                _log.warning("usage file deleted", file=path.name, files=self._max_files)
