"""Usage log: a bounded queue of records, and one thread that writes them to files.

Records are written as they come and synced to the device at most every `SYNC_S`, at the end of a file and at the end
of the process. So a killed process loses only what was in its queue, usually nothing; a lost machine loses `SYNC_S`.
A write that fails is repeated: nothing is lost until the queue is full or the process ends.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import structlog

from server.usage.files import UsageFiles
from server.usage.record import UsageRecord, line_of

MAX_RECORDS = 65_536  # waiting; about 30 MB
BATCH = 256  # records of one write
SYNC_S = 5.0
RETRY_S = 1.0
CLOSE_S = 5.0  # to write the rest at the end of the process

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.usage")


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
        self._synced_s = time.monotonic()
        self._unsynced = False

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
        ended = False
        while not ended:
            lines, ended = self._next()
            if lines:
                self._write(lines)
            if self._unsynced and (ended or time.monotonic() - self._synced_s >= SYNC_S):
                self._sync()
        self._attempt(self._files.close)

    def _next(self) -> tuple[list[bytes], bool]:
        """Wait for records, or until a sync is due; return them, and whether the end was reached."""
        lines: list[bytes] = []
        try:
            item = self._queue.get(timeout=SYNC_S if self._unsynced else None)
            while item is not None:
                lines.append(item)
                if len(lines) == BATCH:
                    return lines, False
                item = self._queue.get_nowait()
        except Empty:
            return lines, False
        return lines, True

    def _write(self, lines: list[bytes]) -> None:
        """Write lines, again and again until that succeeds or the process ends."""
        while not self._attempt(lambda: self._files.write(lines)):
            if self._abandoned.wait(self._retry_s):
                self._on_lost(len(lines))
                _log.error("usage records were lost", count=len(lines))
                return
        self._unsynced = True

    def _sync(self) -> None:
        if self._attempt(self._files.sync):
            self._unsynced = False
        self._synced_s = time.monotonic()

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
