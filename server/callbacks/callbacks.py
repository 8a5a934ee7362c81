"""Callbacks of one process: recordings that are recognized later, and finals of live streams, delivered from a folder.

Entries of one call are handled one after the other, calls next to each other. Recordings are recognized a few at a
time, one of each caller, so that no caller's queue delays the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from server.callbacks.delivery import CallbackDelivery, CallbackOutcome
from server.callbacks.folder import CallbackEntry, CallbackFolder
from server.callbacks.hosts import AllowedHosts
from server.errors import TooManyUploads

RECORDINGS = 2  # recognized at a time by a process
MAX_RECORDINGS = 1_000  # waiting in a process
MAX_OF_CALLER = 250  # of one key, without keys of one address
MAX_FINALS = 1_000  # waiting of one live stream
CLAIM_S = 30.0  # between two looks for entries of processes that ended

Recognize = Callable[[CallbackEntry, bytes], Coroutine[Any, Any, bytes | None]]
T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.callbacks")


class Callbacks:
    """All methods but the constructor are called on the event loop."""

    def __init__(
        self, hosts: AllowedHosts, folder: CallbackFolder, key: bytes | None, count: Callable[[CallbackOutcome], None]
    ) -> None:
        self.hosts = hosts
        self._folder = folder
        self._count = count
        self._key = key
        self._delivery: CallbackDelivery | None = None
        self._disk = ThreadPoolExecutor(1, "callbacks")
        self._calls: dict[str, deque[tuple[CallbackEntry, asyncio.Future[None] | None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._recordings = Counter[str]()  # waiting, by caller
        self._places = asyncio.Semaphore(RECORDINGS)
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()  # of callers whose recordings wait
        self.recognize: Recognize | None = None
        """Returns the body of a recording's result, None if this process stops before; set by its protocol."""

    @property
    def waiting(self) -> int:
        """Entries that this process has not delivered yet."""
        return sum(map(len, self._calls.values()))

    def start(self) -> None:
        """Continue with what other processes left, now and periodically."""
        self._delivery = CallbackDelivery(self.hosts, self._key, self._count)
        self._begin(self._claim())

    async def stop(self) -> None:
        """Stop; what is not delivered stays in the folder."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._on_disk(self._folder.close)
        self._disk.shutdown(wait=False)
        if self._delivery is not None:
            await self._delivery.close()

    async def add_recording(self, entry: CallbackEntry, audio: bytes) -> None:
        """Store a recording; it is recognized later. Raises: TooManyUploads."""
        caller = _caller_of(entry)
        for waiting, most in ((self._recordings.total(), MAX_RECORDINGS), (self._recordings[caller], MAX_OF_CALLER)):
            if waiting >= most:
                raise TooManyUploads(f"{most} recordings wait for their callbacks; send it again later")
        self._recordings[caller] += 1
        try:
            await self._on_disk(self._folder.add, entry, "audio", audio)
        except OSError as error:
            self._done(entry)
            _log.error("callback cannot be stored", error=error.strerror)
            raise TooManyUploads("the queue of callbacks cannot be written; send the recording again later") from error
        self._enqueue(entry)

    def add_final(self, entry: CallbackEntry, body: bytes) -> None:
        """Store a result of a live stream, and post it after those before it; never blocks."""
        if len(self._calls.get(entry.call, ())) >= MAX_FINALS:
            self._count(CallbackOutcome.FAILED)
            _log.warning("callback dropped, too many wait", request_id=entry.call)
            return
        self._enqueue(entry, self._on_disk(self._folder.add, entry, "body", body))

    def _on_disk(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._disk, function, *arguments)

    def _enqueue(self, entry: CallbackEntry, stored: asyncio.Future[None] | None = None) -> None:
        if (waiting := self._calls.get(entry.call)) is not None:
            waiting.append((entry, stored))
            return
        self._calls[entry.call] = deque([(entry, stored)])
        self._begin(self._work(entry.call))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _claim(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                claimed = await self._on_disk(self._folder.claim)
                if claimed:
                    _log.info("callbacks continued", entries=len(claimed))
                for entry in claimed:
                    if entry.recording:
                        self._recordings[_caller_of(entry)] += 1
                    self._enqueue(entry)
            await asyncio.sleep(CLAIM_S)

    async def _work(self, call: str) -> None:
        """Handle the entries of a call, one after the other."""
        waiting = self._calls[call]
        while waiting:
            entry, stored = waiting[0]
            try:
                if stored is not None:
                    await stored
                await self._handle(entry)
            except Exception:  # noqa: BLE001 - the calls after it are delivered
                self._count(CallbackOutcome.FAILED)
                _log.exception("callback failed", request_id=call)
            finally:
                if entry.recording:
                    self._done(entry)
                waiting.popleft()
        del self._calls[call]

    async def _handle(self, entry: CallbackEntry) -> None:
        """Recognize and deliver an entry, unless this process stops before. Raises: OSError."""
        body = await self._on_disk(self._folder.read, entry.id, "body")
        if body is None:
            body = await self._recognized(entry)
            if body is None:
                return
            await self._on_disk(self._folder.resolve, entry.id, body)
        assert self._delivery is not None, "made by `start`"
        await self._delivery.deliver(entry, body)
        await self._on_disk(self._folder.remove, entry.id)

    def _done(self, entry: CallbackEntry) -> None:
        caller = _caller_of(entry)
        self._recordings[caller] -= 1
        if not self._recordings[caller]:
            del self._recordings[caller]

    async def _recognized(self, entry: CallbackEntry) -> bytes | None:
        assert self.recognize is not None, "set by the protocol"
        turn = self._turns.setdefault(_caller_of(entry), asyncio.Semaphore(1))
        async with turn, self._places:
            audio = await self._on_disk(self._folder.read, entry.id, "audio")
            return None if audio is None else await self.recognize(entry, audio)


def _caller_of(entry: CallbackEntry) -> str:
    """Return the unit of fair sharing: a key, without keys an address."""
    return entry.key_id or entry.client
