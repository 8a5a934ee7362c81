"""Meters: one for each open stream and upload. They write its usage records and count it by key.

A record is written when a stream or upload ends. So that a killed server loses little, an open one has a record every
`EVERY_S` too, and a resumable one with its first audio: another server may continue it from its first ticket on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from server.usage.log import CLOSE_S, UsageLog
from server.usage.record import OPEN, UsageRecord

EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Subject:
    """What does not change while a stream or upload is open: who uses what. Fields as in `UsageRecord`."""

    request_id: str
    key: str
    key_id: str
    kind: str
    protocol: str
    model: str
    language: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Stream time that was received, by channel, and the features in use."""

    to_s: tuple[float, ...]
    features: tuple[str, ...]


class KeyCounter(Protocol):
    """Counts by key, in metrics."""

    def began(self, key: str) -> None:
        """Count a stream or upload."""

    def received(self, key: str, audio_s: float) -> None:
        """Count seconds of audio, over all channels."""


class Usage:
    """The meters of a replica, with the log and the counters that are set; without any of them it does nothing."""

    def __init__(
        self,
        log: UsageLog | None = None,
        counter: KeyCounter | None = None,
        *,
        every_s: float = EVERY_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now` is seconds since 1970."""
        self._log = log
        self.counter = counter
        self.every_s = every_s
        self.now = now
        self._open: dict[UsageMeter, None] = {}

    @property
    def on(self) -> bool:
        """Whether usage is recorded or counted."""
        return self._log is not None or self.counter is not None

    def start(self) -> None:
        """Start the thread of the log."""
        if self._log is not None:
            self._log.start()

    def begin(self, subject: Subject, read: Callable[[], Reading]) -> UsageMeter:
        """Return the meter of a stream or upload that was admitted; on the event loop."""
        meter = UsageMeter(self, subject, read)
        if self.on:
            self._open[meter] = None
            meter.begin()
        return meter

    def report_open(self) -> None:
        """Write a record of everything that is still open; on the event loop."""
        for meter in list(self._open):
            meter.report()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write the records that wait, and end the log. Blocks; may be called on any thread."""
        if self._log is not None:
            self._log.close(timeout_s)

    def write(self, record: UsageRecord) -> None:
        """Pass a record to the log, if there is one."""
        if self._log is not None:
            self._log.write(record)

    def ended(self, meter: UsageMeter) -> None:
        """Forget a meter."""
        self._open.pop(meter, None)


class UsageMeter:
    """Usage of one open stream or upload; `end` it once. On the event loop."""

    def __init__(self, usage: Usage, subject: Subject, read: Callable[[], Reading]) -> None:
        self._usage = usage
        self._subject = subject
        self._read: Callable[[], Reading] | None = read  # None: ended
        self._stream = subject.request_id
        self._start = self._time()
        self._from_s = 0.0
        self._counted_s = 0.0  # over all channels
        self._recorded: tuple[float, ...] = ()  # `to_s` of the last record
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Count the stream, and record it from now on until `end`."""
        if self._usage.counter is not None:
            self._usage.counter.began(self._key)
        self._arm()

    def resumed(self, stream: str, from_s: float) -> None:
        """Continue a stream of another connection, whose audio is sent again from `from_s` on."""
        self._stream, self._from_s = stream, from_s

    def use_model(self, model: str, language: str) -> None:
        """Name the model that recognizes the stream from now on; no audio was received before."""
        self._subject = replace(self._subject, model=model, language=language)

    def audio_received(self) -> None:
        """Write the first record of a resumable stream: another server may continue it from its first ticket on."""
        if not self._recorded and self._usage.on:
            self.report()

    def report(self, reason: str = OPEN) -> None:
        """Write a record; none of an open stream without new audio."""
        if self._read is None:
            return
        reading = self._read()
        if reason == OPEN and sum(reading.to_s) in (sum(self._recorded), self._from_s * len(reading.to_s)):
            return
        self._recorded = reading.to_s
        self._count(reading.to_s)
        record = UsageRecord(
            stream=self._stream,
            **asdict(self._subject),
            features=reading.features,
            from_s=round(self._from_s, 6),
            to_s=tuple(round(end_s, 6) for end_s in reading.to_s),
            start=self._start,
            end=self._time(),
            reason=reason,
        )
        self._usage.write(record)

    def end(self, reason: str) -> None:
        """Write the last record. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._usage.on:
            self.report(reason)
        self._usage.ended(self)
        self._read = None  # it refers to the connection, which refers to this meter

    @property
    def _key(self) -> str:
        return self._subject.key or self._subject.key_id

    def _count(self, to_s: tuple[float, ...]) -> None:
        if self._usage.counter is None:
            return
        audio_s = sum(end_s - self._from_s for end_s in to_s)
        self._usage.counter.received(self._key, max(0.0, audio_s - self._counted_s))
        self._counted_s = max(audio_s, self._counted_s)

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._usage.now(), UTC)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._usage.every_s, self._on_timer)

    def _on_timer(self) -> None:
        self.report()
        self._arm()
