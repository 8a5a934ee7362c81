"""Decodes one connection's audio in order, inline or on a pool, and runs flushes behind the audio sent before them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from server.audio.pcm import PCM
from server.errors import BacklogExceeded, MediaError, Undecodable

PIECE_BYTES = 4_096  # 1.4 s of Opus at 24 kbit/s: a burst is decoded as fast as its session takes it, not at once
BYTES_A_SECOND = 3_000  # of what waits, before it is decoded: 24 kbit/s; uncompressed audio seems longer than it is
MAX_WAITING_BYTES = 4 * 2**20  # what may have been read already when reading is stopped

Deliver = Callable[[PCM, float], None]
Action = Callable[[], None]


class DecodingPool:
    """The threads that decode; FFmpeg leaves the interpreter's lock while it does."""

    def __init__(self, workers: int = 1) -> None:
        """Start none before there is work."""
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="media")

    def submit(self, work: Callable[[], PCM]) -> asyncio.Future[PCM]:
        """Do it on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """End the threads once they have finished what they do; what waits is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Audio:
    """A message and when it arrived."""

    chunk: bytes
    arrived_s: float


@dataclass(frozen=True, slots=True)
class _Hold:
    """What to do when all before it is decoded: `tail` pushes out what the decoder holds back."""

    tail: Callable[[], PCM] | None
    action: Action
    arrived_s: float


def _tell_nobody(*_: object) -> None:
    """Of a lane that is released."""


def _no_room() -> bool:
    return False


class DecodeQueue:
    """The decoding of one stream."""

    def __init__(
        self,
        pool: DecodingPool,
        decoder: LiveDecoder,
        *,
        deliver: Deliver,
        fail: Callable[[MediaError], None],
        room: Callable[[], bool],
        max_piece_s: float,
        opened_s: float,
    ) -> None:
        """Samples and the time of arrival go to `deliver`, the first error to `fail`, and nothing after it.

        While there is no `room`, nothing is decoded: `resume` says when there is. `max_piece_s` of audio must fit then.
        """
        self._pool = pool
        self._decoder = decoder
        self._deliver = deliver
        self._fail = fail
        self._room = room
        self._max_piece_s = max_piece_s
        self._allowance = DecodeBudget(opened_s, max_piece_s)
        self._waiting: deque[_Audio | _Hold] = deque()
        self._waiting_bytes = 0
        self._busy = self._closed = False

    @property
    def waiting_s(self) -> float:
        """About how much audio waits to be decoded: a part of the backlog that decides whether to read on."""
        return self._waiting_bytes / BYTES_A_SECOND

    @property
    def pending(self) -> bool:
        """Whether anything waits, or is being decoded."""
        return self._busy or bool(self._waiting)

    def audio(self, chunk: bytes, arrived_s: float) -> None:
        """Take a message. Raises: BacklogExceeded."""
        if self._closed:
            return
        if self._decoder.inline:
            try:
                samples = self._decoder.feed(chunk, self._max_piece_s)  # its form bounds what it grows to
            except MediaError as error:
                self._end(error)
                return
            self._deliver(samples, arrived_s)
            return
        if self._waiting_bytes + len(chunk) > MAX_WAITING_BYTES:
            raise BacklogExceeded("more audio at once than can be decoded")
        self._waiting_bytes += len(chunk)
        for start in range(0, len(chunk), PIECE_BYTES):
            self._waiting.append(_Audio(chunk[start : start + PIECE_BYTES], arrived_s))
        self.resume()

    def then(self, action: Action) -> None:
        """Do it when all that was taken so far is delivered."""
        self._hold(_Hold(None, action, 0.0))

    def settle(self, action: Action, now: float) -> None:
        """Deliver also what the decoder holds back, then do it; the stream goes on."""
        self._hold(_Hold(self._decoder.settle, action, now))

    def flush(self, action: Action, now: float) -> None:
        """Deliver also the end of the stream, then do it."""
        self._hold(_Hold(self._decoder.flush, action, now))

    def resume(self) -> None:
        """Go on: there may be room."""
        while self._waiting and not self._busy and not self._closed:
            item = self._waiting[0]
            if isinstance(item, _Hold) and (item.tail is None or self._decoder.inline):
                self._waiting.popleft()
                item.action()
            elif isinstance(item, _Audio) and not self._room():
                return
            else:
                self._waiting.popleft()
                self._start(item)

    def close(self) -> None:
        """Drop what waits; nothing is delivered any more."""
        self._closed = True
        self._waiting.clear()
        self._waiting_bytes = 0

    def release(self) -> None:
        """Close, and forget whom to tell: whoever made the lane is over, and free without a collection of garbage."""
        self.close()
        self._deliver, self._fail, self._room = _tell_nobody, _tell_nobody, _no_room

    def _hold(self, hold: _Hold) -> None:
        if not self._closed:
            self._waiting.append(hold)
            self.resume()

    def _start(self, item: _Audio | _Hold) -> None:
        if isinstance(item, _Audio):
            self._waiting_bytes -= len(item.chunk)
            limit_s = self._allowance.limit_s(len(item.chunk), item.arrived_s)
            work: Callable[[], PCM] = partial(self._decoder.feed, item.chunk, limit_s)
        else:
            assert item.tail is not None
            work = item.tail
        self._busy = True
        self._pool.submit(work).add_done_callback(partial(self._done, item))

    def _done(self, item: _Audio | _Hold, future: asyncio.Future[PCM]) -> None:
        error = None if future.cancelled() else future.exception()
        if not (self._closed or future.cancelled()):
            if error is not None:
                self._end(error)
            else:
                self._take(item, future.result())
        self._busy = False  # not before: whoever is told of samples may ask to go on
        self.resume()

    def _take(self, item: _Audio | _Hold, samples: PCM) -> None:
        self._allowance.spend(len(samples) / self._decoder.rate)
        if len(samples):
            self._deliver(samples, item.arrived_s)
        if isinstance(item, _Hold) and not self._closed:
            item.action()

    def _end(self, error: BaseException) -> None:
        self.close()
        if isinstance(error, MediaError):
            self._fail(error)
            return
        context = {"message": "a decoder failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        self._fail(Undecodable("the audio cannot be decoded"))


BURST_S = 60.0
SPEED = 50.0  # times real time, whatever the bytes
EXPECTED_BYTES_A_SECOND = 250.0  # 2 kbit/s, a third of the least that speech is coded with


class DecodeBudget:
    """The account of one stream."""

    def __init__(self, opened_s: float, max_piece_s: float) -> None:
        """No piece may decode to more than `max_piece_s`."""
        self._opened_s = opened_s
        self._max_piece_s = max_piece_s
        self._received_bytes = 0
        self._decoded_s = 0.0

    def limit_s(self, size_bytes: int, now: float) -> float:
        """Count a piece in; return how many seconds it may decode to."""
        self._received_bytes += size_bytes
        earned_s = max(self._received_bytes / EXPECTED_BYTES_A_SECOND, SPEED * (now - self._opened_s))
        return min(self._max_piece_s, BURST_S + earned_s - self._decoded_s)

    def spend(self, decoded_s: float) -> None:
        """Count what it decoded to."""
        self._decoded_s += decoded_s


class LiveDecoder(Protocol):
    """Bytes in, samples out, for one stream. After an error it is of no use."""

    @property
    def rate(self) -> int:
        """Hz of what comes out, known before the first byte."""

    @property
    def channels(self) -> int:
        """Channels of what comes out."""

    @property
    def inline(self) -> bool:
        """True if a message costs so little that the event loop may decode it."""

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return what `chunk` completes, (S, C) int16. Raises: MediaError; Inflated beyond `limit_s` of audio."""

    def settle(self) -> PCM:
        """Return what is held back of the audio so far, (S, C) int16; the stream goes on. Raises: MediaError."""

    def flush(self) -> PCM:
        """Return the end, (S, C) int16. Raises: MediaError."""
