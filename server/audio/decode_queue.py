"""Decodes one connection's audio in order, inline or on a pool, and runs flushes after the audio sent before them."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from server.audio.formats import Losses
from server.audio.packets import MAX_SILENT_BYTES
from server.audio.pcm import PCM
from server.errors import BacklogExceeded, MediaError, NoAudio, Undecodable

PIECE_BYTES = 4_096  # 1.4 s of Opus at 24 kbit/s: a burst is decoded as fast as its session takes it, not at once
MAX_WAITING_BYTES = 4 * 2**20  # reading stops long before: at a third, and a message has a quarter at most


class LiveDecoder(Protocol):
    """Bytes to samples, for one stream. After an error it is of no use."""

    @property
    def rate(self) -> int:
        """Output sample rate in Hz, known before the first byte."""

    @property
    def channels(self) -> int:
        """Output channels."""

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of a second of audio as sent: exact or typical for its format. None until the header is read."""

    @property
    def inline(self) -> bool:
        """True if a message costs so little that the event loop may decode it, and nothing is held back."""

    @property
    def losses(self) -> Losses:
        """What was lost of the audio and mended so far."""

    @property
    def warnings(self) -> list[str]:
        """What was mended, and at the end what is missing or left out, as `kind: sentence`."""

    @property
    def holds(self) -> bool:
        """True while the bytes so far hold more than the last limit: `feed` of nothing returns more of it."""

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return what `chunk` completes, (S, C) int16, `limit_s` at most: the rest is held.

        Raises: MediaError; Inflated where more is held and the limit is 0.
        """

    def drain(self, limit_s: float = math.inf) -> PCM:
        """Return what is held back of the audio so far, (S, C) int16; the stream continues. Raises: as `feed`."""

    def flush(self, limit_s: float = math.inf) -> PCM:
        """Return the end, (S, C) int16; to be called again while the decoder `holds` more. Raises: as `feed`."""


@runtime_checkable
class Sniffing(Protocol):
    """A decoder whose first messages decide whether it is inline."""

    @property
    def undecided(self) -> bool:
        """True while it keeps audio back until that is decided."""

    def sniff(self, chunk: bytes) -> bool:
        """Look at the next message before it is fed; return whether it may be decoded inline."""


class AudioReceiver(Protocol):
    """Owner of a `DecodeQueue`: takes what it decodes on the pool."""

    @property
    def has_room(self) -> bool:
        """False while nothing should be decoded; `DecodeQueue.resume` goes on."""

    def on_samples(self, samples: PCM, arrived_s: float) -> None:
        """Take decoded audio, (S, C) int16, and when its message arrived."""

    def on_progress(self) -> None:
        """Called after each piece that was decoded on the pool, even if it held no audio: fewer bytes wait."""

    def on_bad_audio(self, error: MediaError) -> None:
        """Take the first error, after which nothing follows."""


class DecodingPool:
    """The threads that decode; FFmpeg leaves the interpreter's lock while it does."""

    def __init__(self, workers: int = 1) -> None:
        """Start none before there is work."""
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="media")

    def submit(self, work: Callable[[], PCM]) -> asyncio.Future[PCM]:
        """Do it on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """End the threads once they have finished what they do; waiting work is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Audio:
    """A piece of a message, and when it arrived."""

    chunk: bytes
    arrived_s: float


@dataclass(frozen=True, slots=True)
class _Barrier:
    """An action that runs when all audio before it is delivered, and what `tail` returns of the decoder's rest."""

    tail: Callable[[float], PCM] | None
    action: Callable[[], None]
    arrived_s: float


class DecodeQueue:
    """Audio and flushes of one stream, in their order. Only a decoder that needs a thread lets anything wait here."""

    def __init__(self, pool: DecodingPool, decoder: LiveDecoder | None, *, max_piece_s: float, opened_s: float) -> None:
        """`decoder` is None where audio comes decoded; `max_piece_s` of audio must fit whenever there is room."""
        self._pool = pool
        self._decoder = decoder
        self._inline = decoder is None or decoder.inline
        self._sniffing = decoder if isinstance(decoder, Sniffing) else None
        self._max_piece_s = max_piece_s
        self._budget = DecodeBudget(opened_s, max_piece_s)
        self._rate = ByteRate()
        self._waiting: deque[_Audio | _Barrier] = deque()
        self._waiting_bytes = 0
        self._silent_bytes = 0  # decoded since the last audio
        self._busy = False  # the pool has a piece of it
        self._closed = False
        self.receiver: AudioReceiver | None = None  # dropped by `release`: each refers to the other

    @property
    def waiting_s(self) -> float:
        """Estimated length of the audio that waits to be decoded; 0 while only a header has been read."""
        nominal = None if self._decoder is None else self._decoder.bytes_per_s
        return 0.0 if nominal is None else self._waiting_bytes / self._rate.bytes_per_s(nominal)

    @property
    def fill(self) -> float:
        """Waiting bytes as a share of the most that may wait."""
        return self._waiting_bytes / MAX_WAITING_BYTES

    @property
    def pending(self) -> bool:
        """True while anything waits, or is being decoded."""
        return self._busy or bool(self._waiting)

    def audio(self, chunk: bytes, arrived_s: float) -> PCM | None:
        """Take a message; return its samples, None if the receiver gets them. Raises: BacklogExceeded, MediaError."""
        if self._closed:
            return None
        assert self._decoder is not None, "audio comes decoded"
        if self._inline and self._sniffing is not None:
            self._inline = self._sniffing.sniff(chunk)
        if self._inline:
            try:
                return self._decoder.feed(chunk, self._max_piece_s)  # its form bounds what it grows to
            except MediaError:
                self.close()
                raise
        if self._waiting_bytes + len(chunk) > MAX_WAITING_BYTES:
            raise BacklogExceeded("more audio at once than can be decoded")
        self._waiting_bytes += len(chunk)
        for start in range(0, len(chunk), PIECE_BYTES):
            self._waiting.append(_Audio(chunk[start : start + PIECE_BYTES], arrived_s))
        self.resume()
        return None

    def then(self, action: Callable[[], None]) -> None:
        """Run the action after the audio taken so far."""
        self._append(_Barrier(None, action, 0.0))

    def drain(self, action: Callable[[], None], now: float) -> None:
        """Deliver also what the decoder holds back, then run the action; the stream continues."""
        self._append(_Barrier(None if self._decoder is None else self._decoder.drain, action, now))

    def flush(self, action: Callable[[], None], now: float) -> None:
        """Deliver also the end of the stream, then run the action."""
        self._append(_Barrier(None if self._decoder is None else self._decoder.flush, action, now))

    def resume(self) -> None:
        """Go on, after the receiver had no room."""
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
        """Drop all that waits; nothing is delivered any more."""
        self._closed = True
        self._waiting.clear()
        self._waiting_bytes = 0

    def release(self) -> None:
        """Close and drop the receiver, so that both are freed without a collection of garbage."""
        self.close()
        self.receiver = None

    def _append(self, barrier: _Barrier) -> None:
        if self._closed:
            return
        if self._sniffing is not None and self._sniffing.undecided:
            self._inline = False
        if self._inline:
            barrier.action()  # nothing waits
            return
        self._waiting.append(barrier)
        self.resume()

    def _start(self, item: _Audio | _Barrier) -> None:
        assert self._decoder is not None
        size_bytes = len(item.chunk) if isinstance(item, _Audio) else 0
        self._waiting_bytes -= size_bytes
        limit_s = self._budget.limit_s(size_bytes, item.arrived_s)
        if isinstance(item, _Audio):
            work = partial(self._decoder.feed, item.chunk, limit_s)
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
        self._busy = False  # not before: a receiver of samples may call `resume`
        self.resume()
        if self.receiver is not None and not self._closed:
            self.receiver.on_progress()

    def _deliver(self, item: _Audio | _Barrier, samples: PCM) -> None:
        assert self._decoder is not None
        decoded_s = len(samples) / self._decoder.rate
        self._budget.spend(decoded_s)
        if isinstance(item, _Audio):
            self._count(len(item.chunk), decoded_s)
        if len(samples) and self.receiver is not None:
            self.receiver.on_samples(samples, item.arrived_s)
        if self._closed:
            return
        if self._decoder.holds:
            if isinstance(item, _Barrier):
                self._waiting.appendleft(item)  # its end comes after what is held
            self._waiting.appendleft(_Audio(b"", item.arrived_s))
        elif isinstance(item, _Barrier):
            item.action()

    def _count(self, size_bytes: int, decoded_s: float) -> None:
        assert self._decoder is not None
        if self._decoder.bytes_per_s is not None:
            self._rate.count(size_bytes, decoded_s)
        self._silent_bytes = 0 if decoded_s else self._silent_bytes + size_bytes
        if self._silent_bytes > MAX_SILENT_BYTES:
            self._fail(NoAudio.in_bytes(MAX_SILENT_BYTES))

    def _fail(self, error: BaseException) -> None:
        self.close()
        if not isinstance(error, MediaError):
            context = {"message": "a decoder failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            error = Undecodable("the audio cannot be decoded")
        if self.receiver is not None:
            self.receiver.on_bad_audio(error)


class ByteRate:
    """Bytes of a second of audio: what the format says, corrected by what was decoded, as bit rates vary."""

    def __init__(self) -> None:
        self._bytes = self._decoded_s = 0.0

    def count(self, size_bytes: int, decoded_s: float) -> None:
        """Count a piece that was decoded."""
        self._bytes += size_bytes
        self._decoded_s += decoded_s

    def bytes_per_s(self, nominal: float) -> float:
        """Return the mean so far, to which `nominal` contributes one second."""
        return (nominal + self._bytes) / (1.0 + self._decoded_s)


BURST_S = 600.0  # of a few words with pauses of minutes between them, by timestamps alone
SPEED = 50.0  # times real time, for any number of bytes
LEAST_BYTES_PER_S = 16.0
"""Bytes of a second of audio below which no encoder gets, not even of digital silence. FLAC takes 20 at 8 kHz (11 bytes
for 4,608 samples, the most of its streamable subset), Opus without transmission (DTX) 25, MP3 1,000."""


class DecodeBudget:
    """Limits the audio decoded by the bytes received and the time passed: a few bytes can inflate to hours.

    What is within it may take long, but no memory: it is decoded as the engine takes it.
    """

    def __init__(self, opened_s: float, max_piece_s: float) -> None:
        """No piece is decoded to more than `max_piece_s` at once."""
        self._opened_s = opened_s
        self._max_piece_s = max_piece_s
        self._received_bytes = 0
        self._decoded_s = 0.0

    def limit_s(self, size_bytes: int, now: float) -> float:
        """Count a piece in; return how many seconds may be decoded now."""
        self._received_bytes += size_bytes
        earned_s = max(self._received_bytes / LEAST_BYTES_PER_S, SPEED * (now - self._opened_s))
        return min(self._max_piece_s, BURST_S + earned_s - self._decoded_s)

    def spend(self, decoded_s: float) -> None:
        """Count the audio that a piece decoded to."""
        self._decoded_s += decoded_s
