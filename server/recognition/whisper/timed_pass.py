"""Threads that run a second pass for live streams within a deadline, one segment a call; the queue is bounded.

A live stream's segment that meets a full queue, or is late, gets no words: the first pass's text is sent, with the
reason. Segments of uploads come after those of live streams, and wait as long as they have to; their number is bounded
by the backlog of their streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from server.recognition.decoding.second_pass import Decode, Done, Outcome
from server.recognition.decoding.segment_threads import SegmentThreads
from server.recognition.events import Fallback

WAITING = 4  # segments of live streams per thread that may wait


class Unusable(Exception):
    """The second pass has no usable text; `reason` says why."""

    def __init__(self, reason: Fallback) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(slots=True, eq=False)
class _Segment:
    """A segment to decode. `over`: its outcome was delivered. Owned by the event loop; a thread only reads it."""

    decode: Decode | None
    done: Done
    loop: asyncio.AbstractEventLoop
    submitted_s: float
    background: bool
    over: bool = False
    timer: asyncio.TimerHandle | None = None


class TimedPass:
    """Runs second passes on threads, within a deadline; implements `SegmentPass` by structure."""

    delays_admission = False  # who waits too long has the first pass's text

    def __init__(self, clock: Callable[[], float], *, threads: int, timeout_s: float, waiting: int = WAITING) -> None:
        """`timeout_s`: from the end of a live stream's segment to its final. `waiting`: segments per thread."""
        self._clock, self._timeout_s = clock, timeout_s
        self._places = threading.Semaphore(waiting * threads)  # of live streams' segments that wait
        self._threads = SegmentThreads("timed pass", threads)

    @property
    def waiting(self) -> int:
        """Segments in the queue."""
        return self._threads.waiting

    def submit(self, decode: Decode, done: Done, *, background: bool) -> None:
        """Run `decode` on a thread, then `done` on the running event loop, never within this call."""
        loop = asyncio.get_running_loop()
        segment = _Segment(decode, done, loop, self._clock(), background)
        if not background:
            if not self._places.acquire(blocking=False):
                loop.call_soon(self._deliver, segment, Outcome(None, None, 0.0, 0.0, Fallback.FULL))
                return
            segment.timer = loop.call_later(self._timeout_s, self._expire, segment)
        self._threads.put(partial(self._run, segment), background=background)

    def stop(self) -> None:
        """Let each thread end after its current segment; waiting ones are dropped."""
        self._threads.stop()

    # On the event loop

    def _expire(self, segment: _Segment) -> None:
        waited_s = self._clock() - segment.submitted_s
        self._deliver(segment, Outcome(None, None, waited_s, 0.0, Fallback.LATE))

    def _deliver(self, segment: _Segment, outcome: Outcome) -> None:
        if segment.over:
            return
        segment.over, segment.decode = True, None  # frees its audio, if it still waits
        if segment.timer is not None:
            segment.timer.cancel()
        segment.done(outcome)

    # On the threads

    def _run(self, segment: _Segment) -> None:
        if not segment.background:
            self._places.release()
        decode = segment.decode
        if decode is None:
            return
        outcome = self._outcome(decode, segment.submitted_s)
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the process ends
            segment.loop.call_soon_threadsafe(self._deliver, segment, outcome)

    def _outcome(self, decode: Decode, submitted_s: float) -> Outcome:
        began_s = self._clock()
        words, failed, fallback = None, None, None
        try:
            words = decode()
            if not words:
                fallback = Fallback.EMPTY
        except Unusable as error:
            fallback = error.reason
        except Exception as error:  # noqa: BLE001 - a failed segment must not end the thread
            failed, fallback = error, Fallback.FAILED
        return Outcome(words, failed, began_s - submitted_s, self._clock() - began_s, fallback)
