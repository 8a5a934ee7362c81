"""Usage log: a bounded queue of records, and one thread that writes them to files.

Records are written as they come, and synced to the device when none waits, at the end of a file and at the end of the
process. So a killed process loses only what was in its queue, usually nothing, and so does a lost machine. A write that
fails is repeated: nothing is lost until the queue is full or the process ends.

Several processes, also of several machines, may write to one folder: the name of a file has machine and process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

import structlog

from server.errors import SettingsError
from server.usage.record import UsageRecord, line_of

PATTERN = "usage-*.jsonl"
FILE_MODE = 0o640
MAX_FILES = 200  # in the folder, of all servers that write there; the oldest are deleted
MAX_BYTES = 64 * 2**20  # of a file
MAX_RECORDS = 65_536  # waiting; about 30 MB
RETRY_S = 1.0
CLOSE_S = 5.0  # to write the rest at the end of the process

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.usage")


class UsageFiles:
    """The files that one process writes, one at a time. Blocking; used by one thread."""

    def __init__(self, folder: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        """Create the folder if needed. Raises: SettingsError."""
        self._folder = folder
        self._max_bytes, self._max_files = max_bytes, max_files
        self._fd: int | None = None
        self._number = 0
        began = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        self._stem = f"usage-{began}-{socket.gethostname() or 'host'}-{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"usage_log: cannot create the folder {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SettingsError(f"usage_log: cannot write to the folder {folder}; check its permissions")

    def write(self, line: bytes) -> None:
        """Append a line, to the next file if this one is full or was deleted. Raises: OSError: no part was written."""
        fd = self._open() if self._fd is None else self._fd
        status = os.fstat(fd)
        if not status.st_nlink or (status.st_size and status.st_size + len(line) > self._max_bytes):
            self.close()
            self.write(line)
            return
        try:
            rest = line
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            try:
                os.ftruncate(fd, status.st_size)
            except OSError:  # the line stays incomplete, so it is the last of its file
                with contextlib.suppress(OSError):
                    self.close()
            raise

    def sync(self) -> None:
        """Wait until the file is on its device. Raises: OSError."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Sync and close the file; the next line begins another one. Raises: OSError."""
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _open(self) -> int:
        while self._fd is None:
            path = self._folder / f"{self._stem}-{self._number:04d}.jsonl"
            self._number += 1
            with contextlib.suppress(FileExistsError):  # of a container with the same name and process id
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, FILE_MODE)
        self._delete_oldest(path)
        return self._fd

    def _delete_oldest(self, opened: Path) -> None:
        """Delete the files that were written longest ago, of any process, beyond the largest number."""
        ages: list[tuple[float, Path]] = []
        for path in self._folder.glob(PATTERN):
            with contextlib.suppress(OSError):  # another process may delete it at the same time
                ages.append((path.stat().st_mtime, path))
        ages.sort()
        for _, path in ages[: max(0, len(ages) - self._max_files)]:
            if path == opened:
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                _log.warning("usage file deleted", file=path.name, files=self._max_files)


class UsageLog:
    """Writer of usage records. `write` may be called on any thread and never blocks."""

    def __init__(self, files: UsageFiles, on_lost: Callable[[float], None], *, retry_s: float = RETRY_S) -> None:
        """`on_lost` gets the number of records that were lost, on any thread."""
        self._files = files
        self._on_lost = on_lost
        self._retry_s = retry_s
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()  # None: the end
        self._thread: threading.Thread | None = None
        self._abandoned = threading.Event()
        self._failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, record: UsageRecord) -> None:
        """Queue a record; it is lost if the queue is full."""
        if self._queue.qsize() >= MAX_RECORDS:
            self._on_lost(1)
        else:
            self._queue.put(line_of(record))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write and sync all records so far, then end the thread. Blocks; may be called again."""
        thread = self._thread
        if thread is None:
            return
        atexit.unregister(self.close)
        self._queue.put(None)
        thread.join(timeout_s)
        if thread.is_alive():
            self._abandoned.set()
            thread.join(self._retry_s)

    def _run(self) -> None:
        lost = 0
        while (line := self._queue.get()) is not None:
            lost += not self._written(line)
            if self._queue.empty():
                self._attempt(self._files.sync)
        self._attempt(self._files.close)
        if lost:
            self._on_lost(lost)
            _log.error("usage records were lost", count=lost)

    def _written(self, line: bytes) -> bool:
        """Write a line, again and again until that succeeds; return False if the process ends first."""
        while not self._attempt(lambda: self._files.write(line)):
            if self._abandoned.wait(self._retry_s):
                return False
        return True

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Return whether the action succeeded; log the first failure, and the first success after it."""
        try:
            action()
        except OSError as error:
            if not self._failing:
                _log.error("the usage log cannot be written", reason=error.strerror, waiting=self._queue.qsize())
            self._failing = True
            return False
        if self._failing:
            _log.info("the usage log is written again")
        self._failing = False
        return True
