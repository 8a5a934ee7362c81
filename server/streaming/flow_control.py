"""Flow control of one connection: joining of short messages, backpressure on reading, and time limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from server.audio.decode_queue import DecodingPool
from server.operations.metrics import Metrics
from server.streaming.closing import ConnectionEvent

HIGH_WATER, LOW_WATER = 1 / 3, 1 / 6  # shares of the largest backlog: reading stops above one, resumes below the other
WRITE_TIMEOUT_S = 10.0  # that a client may take to receive one frame
UNREAD_S = 0.3  # without a read, until fewer bytes of a resting stream than those of a step are read
MAX_SESSION_S = 86_400.0  # of the longest live connection
BRACE = ord("{")  # first byte of a binary message that may be a control message


class ShortMessages:
    """Messages of one connection that complete no step; they are joined, because most of a message's cost is
    independent of its size.

    Clients such as Pipecat send 20 ms at a time, a quarter of a step. Three of four such messages are only stored here;
    with the fourth, all are handled as one message of 80 ms. Results do not depend on message boundaries. All other
    messages are handled after the audio before them.
    """

    def __init__(self) -> None:
        self.kept: list[bytes] = []  # its owner appends messages of audio that are shorter than `room`,
        self.room = 0  # and subtracts their sizes: while fewer bytes follow, it has nothing to do

    def make_room(self, samples: int, frame_bytes: int) -> None:
        """Keep messages that have fewer than `samples` samples in all; `frame_bytes`: size of one sample of all
        channels.

        If one of the two is 0, keep none. The messages may be preceded by an incomplete sample.
        """
        self.room = (samples - 1) * frame_bytes + 1 if samples and frame_bytes else 0

    def release(self, last: bytes = b"") -> bytes:
        """Return the kept messages and then `last` as one message; nothing more is kept until there is room again."""
        joined, self.room = b"".join([*self.kept, last]), 0
        self.kept.clear()
        return joined


def is_audio(message: bytes | str) -> TypeGuard[bytes]:
    """Whether a message can only be audio: neither text, nor empty, nor a control message in a binary one."""
    return isinstance(message, bytes) and len(message) > 0 and message[0] != BRACE


class Backpressure:
    """High-water and low-water marks of a connection's backlog.

    The backlog is measured in seconds of audio and as `fill`, the waiting bytes as a share of their limit: a header, or
    audio with many channels, is large without being long. Call `falls` whenever one of the two has decreased.
    """

    def __init__(self, max_backlog_s: float) -> None:
        self.high_s, self._low_s = max_backlog_s * HIGH_WATER, max_backlog_s * LOW_WATER
        self.holding = False  # True while reading is paused
        self._until_release = False

    def rises(self, backlog_s: float, fill: float) -> bool:
        """Return whether reading must stop now."""
        if self.holding or (backlog_s <= self.high_s and fill <= HIGH_WATER):
            return False
        self.holding = True
        return True

    def hold(self) -> bool:
        """Stop reading until `release`, regardless of the backlog; return whether reading was active."""
        before, self.holding = self.holding, True
        self._until_release = True
        return not before

    def falls(self, backlog_s: float, fill: float) -> bool:
        """Return whether reading may resume now."""
        if not self.holding or self._until_release or backlog_s > self._low_s or fill > LOW_WATER:
            return False
        self.holding = False
        return True

    def release(self) -> bool:
        """Resume reading, regardless of the backlog; return whether it was paused."""
        held, self.holding = self.holding, False
        self._until_release = False
        return held


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """The operator's limits for live connections, in seconds."""

    idle_timeout_s: float
    stall_timeout_s: float
    max_backlog_s: float


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The parts of a replica that its connections share."""

    limits: LiveLimits
    metrics: Metrics
    clock: Callable[[], float]
    pool: DecodingPool


class Deadlines:
    """Time limits of one connection, from the times of its last activity by its owner's clock."""

    def __init__(self, limits: LiveLimits, now: float) -> None:
        self._limits = limits
        self._opened_s = now
        self.received_s = now  # the client's last message
        self.progress_s = now  # the engine's last result, or the time since which one is due

    def due(self, now: float, writing_since_s: float, *, answer_due: bool, listening: bool) -> ConnectionEvent | None:
        """Return the event of an exceeded limit, the most severe first, or None.

        `answer_due` is true while audio waits for the engine; `listening` is false while reading is paused.
        """
        if now - writing_since_s >= WRITE_TIMEOUT_S:
            return ConnectionEvent.SLOW_CONSUMER
        if answer_due and self._stall_left_s(now) <= 0:
            return ConnectionEvent.STALLED
        if listening and self._idle_left_s(now) <= 0:
            return ConnectionEvent.IDLE
        return ConnectionEvent.TOO_LONG if self._session_left_s(now) <= 0 else None

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next limit can be exceeded."""
        left_s = (self._idle_left_s(now), self._stall_left_s(now), self._session_left_s(now))
        return min([WRITE_TIMEOUT_S, *(seconds for seconds in left_s if seconds > 0)])

    def _idle_left_s(self, now: float) -> float:
        return self.received_s + self._limits.idle_timeout_s - now

    def _stall_left_s(self, now: float) -> float:
        return self.progress_s + self._limits.stall_timeout_s - now

    def _session_left_s(self, now: float) -> float:
        return self._opened_s + MAX_SESSION_S - now
