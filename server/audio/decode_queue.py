"""Queue of one connection's audio and flushes: decodes in order, inline or on a thread pool."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from server.audio.decoder import LiveDecoder, SniffingDecoder
from server.audio.packets import MAX_SILENT_BYTES
from server.audio.pcm import PCM
from server.audio.raw import PlainReader
from server.errors import BacklogExceeded, MediaError, NoAudio, Undecodable

PIECE_BYTES = 4_096  # 1.4 s of Opus at 24 kbit/s: a burst is decoded in pieces, as the session accepts them
MAX_WAITING_BYTES = 4 * 2**20  # reading stops at a third of it, and a message has a quarter at most


class AudioReceiver(Protocol):
    """Owner of a `DecodeQueue`: receives the audio decoded on the pool."""

    @property
    def has_room(self) -> bool:
        """False while decoding should pause; `DecodeQueue.resume` continues it."""

    def on_samples(self, samples: PCM, arrived_s: float) -> None:
        """Receive decoded audio, (S, C) int16, and the arrival time of its message."""

    def on_progress(self) -> None:
        """Called after each piece decoded on the pool, even one without audio: fewer bytes are waiting."""

    def on_bad_audio(self, error: MediaError) -> None:
        """Receive the first error; no calls follow it."""


class DecodingPool:
    """Thread pool for decoding; FFmpeg releases the interpreter lock while it decodes."""

    def __init__(self, workers: int = 1) -> None:
        """Threads are started when there is work."""
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="media")

    def submit(self, work: Callable[[], PCM]) -> asyncio.Future[PCM]:
        """Run `work` on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Stop the threads after their current work; waiting work is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Audio:
    """A piece of a message and its arrival time."""

    chunk: bytes
    arrived_s: float


@dataclass(frozen=True, slots=True)
class _Barrier:
    """An action that runs after all audio before it, including what `tail` returns, was delivered."""

    tail: Callable[[float], PCM] | None
    action: Callable[[], None]
    arrived_s: float


class DecodeQueue:
    """Audio and flushes of one stream, in order. Items wait only if the decoder is not inline."""

    def __init__(self, pool: DecodingPool, decoder: LiveDecoder | None, *, max_piece_s: float, opened_s: float) -> None:
        """`decoder`: None if the audio arrives decoded. `max_piece_s`: most audio delivered to a receiver with room."""
        self._pool = pool
        self.decoder = decoder
        self.inline = decoder is None or decoder.inline
        """True while audio is decoded as it comes, and nothing ever waits."""
        self._sniffing = decoder if isinstance(decoder, SniffingDecoder) else None
        self.frame_bytes = 0  # of one sample of all channels; 0 while messages must be decoded as they come
        self._max_piece_s = max_piece_s
        self._budget = DecodeBudget(opened_s, max_piece_s)
        self._rate = ByteRate()
        self._waiting: deque[_Audio | _Barrier] = deque()
        self._waiting_bytes = 0
        self._silent_bytes = 0  # consumed since the last audio
        self._busy = False  # a piece is being decoded on the pool
        self._closed = False
        self.receiver: AudioReceiver | None = None  # cleared by `release`, to break the reference cycle

    @property
    def waiting_s(self) -> float:
        """Estimated length of the audio waiting to be decoded; 0 until the header has been read."""
        if not self._waiting_bytes:
            return 0.0
        nominal = None if self.decoder is None else self.decoder.bytes_per_s
        return 0.0 if nominal is None else self._waiting_bytes / self._rate.bytes_per_s(nominal)

    @property
    def fill(self) -> float:
        """Waiting bytes as a fraction of the maximum."""
        return self._waiting_bytes / MAX_WAITING_BYTES

    @property
    def pending(self) -> bool:
        """True while anything is waiting or being decoded."""
        return self._busy or bool(self._waiting)

    def audio(self, chunk: bytes, arrived_s: float) -> PCM | None:
        """Add a message; return its samples, or None if the receiver gets them. Raises: BacklogExceeded, MediaError."""
        if self._closed:
            return None
        assert self.decoder is not None, "the audio arrives decoded"
        if self.inline and self._sniffing is not None:
            self._hold(self._sniffing.sniff(chunk))
        if self.inline:
            try:
                return self.decoder.feed(chunk, self._max_piece_s)  # the format bounds the length of its audio
            except MediaError:
                self.close()
                raise
        if self._waiting_bytes + len(chunk) > MAX_WAITING_BYTES:
            raise BacklogExceeded(
                f"more than {MAX_WAITING_BYTES >> 20} MiB of audio are waiting to be decoded; send it in real time"
            )
        self._waiting_bytes += len(chunk)
        for start in range(0, len(chunk), PIECE_BYTES):
            self._waiting.append(_Audio(chunk[start : start + PIECE_BYTES], arrived_s))
        self.resume()
        return None

    def _hold(self, decoder: LiveDecoder) -> None:
        self.decoder, self.inline = decoder, decoder.inline
        if decoder is not self._sniffing:
            self._sniffing = None
            self.frame_bytes = decoder.frame_bytes if isinstance(decoder, PlainReader) else 0

    def then(self, action: Callable[[], None]) -> None:
        """Run the action after the audio added so far."""
        self._append(_Barrier(None, action, 0.0))

    def drain(self, action: Callable[[], None], now: float) -> None:
        """Deliver all audio so far, including samples held back, then run the action; the stream continues."""
        self._append(_Barrier(None if self.decoder is None else self.decoder.drain, action, now))

    def flush(self, action: Callable[[], None], now: float) -> None:
        """Deliver all audio including the end of the stream, then run the action."""
        self._append(_Barrier(None if self.decoder is None else self.decoder.flush, action, now))

    def resume(self) -> None:
        """Continue decoding once the receiver has room again."""
        while self._waiting and not self._busy and not self._closed:
            item = self._waiting[0]
            decodes = isinstance(item, _Audio) or item.tail is not None
            if decodes and self.receiver is not None and not self.receiver.has_room:
                return
            self._waiting.popleft()
            if isinstance(item, _Barrier) and item.tail is None:
                item.action()
            else:
                self._start(item)

    def close(self) -> None:
        """Drop everything that is waiting; nothing more is delivered."""
        self._closed = True
        self._waiting.clear()
        self._waiting_bytes = 0

    def release(self) -> None:
        """Close and drop the receiver, so that both are freed without garbage collection."""
        self.close()
        self.receiver = None

    def _append(self, barrier: _Barrier) -> None:
        if self._closed:
            return
        if self._sniffing is not None and self._sniffing.undecided:
            self.inline = False
        if self.inline:
            barrier.action()  # nothing waits
            return
        self._waiting.append(barrier)
        self.resume()

    def _start(self, item: _Audio | _Barrier) -> None:
        assert self.decoder is not None
        size_bytes = len(item.chunk) if isinstance(item, _Audio) else 0
        self._waiting_bytes -= size_bytes
        limit_s = self._budget.limit_s(size_bytes, item.arrived_s)
        if isinstance(item, _Audio):
            work = partial(self.decoder.feed, item.chunk, limit_s)
        else:
            assert item.tail is not None
            work = partial(item.tail, limit_s)
        self._busy = True
        self._pool.submit(work).add_done_callback(partial(self._done, item))

    def _done(self, item: _Audio | _Barrier, future: asyncio.Future[PCM]) -> None:
        error = None if future.cancelled() else future.exception()
        if not (self._closed or future.cancelled()):
            if error is not None:
                self._fail(error)
            else:
                self._deliver(item, future.result())
        self._busy = False  # only now, because a receiver of samples may call `resume`
        self.resume()
        if self.receiver is not None and not self._closed:
            self.receiver.on_progress()

    def _deliver(self, item: _Audio | _Barrier, samples: PCM) -> None:
        assert self.decoder is not None
        decoded_s = len(samples) / self.decoder.rate
        self._budget.spend(decoded_s)
        if isinstance(item, _Audio):
            self._count(len(item.chunk), decoded_s)
        if len(samples) and self.receiver is not None:
            self.receiver.on_samples(samples, item.arrived_s)
        if self._closed:
            return
        if self.decoder.holds:
            if isinstance(item, _Barrier):
                self._waiting.appendleft(item)  # the end comes after the audio still held
            self._waiting.appendleft(_Audio(b"", item.arrived_s))
        elif isinstance(item, _Barrier):
            item.action()

    def _count(self, size_bytes: int, decoded_s: float) -> None:
        assert self.decoder is not None
        if self.decoder.bytes_per_s is not None:
            self._rate.count(size_bytes, decoded_s)
        self._silent_bytes = 0 if decoded_s else self._silent_bytes + size_bytes
        if self._silent_bytes > MAX_SILENT_BYTES:
            self._fail(NoAudio.in_bytes(MAX_SILENT_BYTES))

    def _fail(self, error: BaseException) -> None:
        self.close()
        if not isinstance(error, MediaError):
            context = {"message": "audio decoder failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            error = Undecodable("the audio cannot be decoded")
        if self.receiver is not None:
            self.receiver.on_bad_audio(error)


class ByteRate:
    """Estimate of the bytes per second of audio: the format's nominal value, corrected by what was decoded."""

    def __init__(self) -> None:
        self._bytes = self._decoded_s = 0.0

    def count(self, size_bytes: int, decoded_s: float) -> None:
        """Add a decoded piece."""
        self._bytes += size_bytes
        self._decoded_s += decoded_s

    def bytes_per_s(self, nominal: float) -> float:
        """Return the mean so far, with `nominal` weighted as one second of audio."""
        return (nominal + self._bytes) / (1.0 + self._decoded_s)


BURST_S = 600.0  # always allowed: a few words with gaps of minutes in the timestamps
SPEED = 50.0  # times real time, allowed for any number of bytes
LEAST_BYTES_PER_S = 16.0
"""Lower bound of any encoder's bytes per second of audio, even for digital silence. FLAC takes 20 at 8 kHz (11 bytes
for 4,608 samples, the largest block of its streamable subset), Opus with DTX 25, MP3 1,000."""


class DecodeBudget:
    """Limit on decoded audio by bytes received and time elapsed: a few bytes can decode to hours of audio.

    Audio within the limit may take long but needs no memory: it is decoded as the engine consumes it.
    """

    def __init__(self, opened_s: float, max_piece_s: float) -> None:
        """At most `max_piece_s` are decoded at once."""
        self._opened_s = opened_s
        self._max_piece_s = max_piece_s
        self._received_bytes = 0
        self._decoded_s = 0.0

    def limit_s(self, size_bytes: int, now: float) -> float:
        """Add a received piece; return how many seconds may be decoded now."""
        self._received_bytes += size_bytes
        earned_s = max(self._received_bytes / LEAST_BYTES_PER_S, SPEED * (now - self._opened_s))
        return min(self._max_piece_s, BURST_S + earned_s - self._decoded_s)

    def spend(self, decoded_s: float) -> None:
        """Add decoded audio."""
        self._decoded_s += decoded_s
