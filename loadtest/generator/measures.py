"""Figures of one level: collected while it runs, reported afterwards.

Owns the counters and the measured window; does no I/O and reads no clock.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from loadtest.generator.answers import LatencySplit
from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.parts import Breakdown, Composition
from loadtest.generator.recordings import Recording
from tutti_asr_client.errors import Refused
from tutti_asr_client.messages import StepTimings

MINUTE_S = 60.0
SHOWN_MISMATCHES = 5
SHOWN_PROBLEMS = 20


class Mismatch(msgspec.Struct, frozen=True):
    """A recording whose text under load differs from its reference text without load (`alone`)."""

    recording: str
    alone: str
    under_load: str


class ServerFigures(msgspec.Struct, frozen=True):
    """Figures of a level from the server's `/metrics`; None for those that it does not report."""

    mean_batch: float | None = None
    cpu_cores: float | None = None
    decode_cores: float | None = None  # decoding time per second: share of one core
    memory_mib: float | None = None  # resident, at the end
    decoder_mib: float | None = None  # part of it held by the decoder
    sessions: float | None = None  # open at the end
    limit: float | None = None  # of sessions, at the end
    slowdown: float | None = None  # of batches against the warm-up, at the end
    batch_sizes: dict[int, int] | None = (
        None  # number of batches by size class; the key is the largest size of the class
    )


class MinuteReport(msgspec.Struct, frozen=True):
    """One minute of a longer level, or one period of another length (`LoadSettings.period_s`)."""

    chunk_latency_ms: Spread | None
    server: ServerFigures


class RefusalFigures(msgspec.Struct, frozen=True):
    """Handshakes refused within the measured window; time from the connection attempt to the response."""

    answer_ms: Spread | None
    statuses: dict[int, int]
    without_retry_after: int


class UploadFigures(msgspec.Struct, frozen=True):
    """Uploads alongside the live streams."""

    at_a_time: int
    done: int
    refused: int
    failed: int
    audio_s_per_s: float


class LevelReport(msgspec.Struct, frozen=True):
    """One level of the JSON document."""

    streams: int
    seconds: float
    policy: str
    chunk_latency_ms: Spread | None
    final_latency_ms: Spread | None
    queue_wait_ms: Spread | None
    step_ms: Spread | None
    decode_ms: Spread | None
    steps: int
    unanswered: int
    audio_s_per_s: float
    complete: int
    cut: int
    compared: int
    mismatched: int
    refused: int
    failed: int
    problems: dict[str, int]
    mismatches: tuple[Mismatch, ...]
    generator_lag_ms: Spread | None
    generator_cpu_cores: float
    server: ServerFigures
    minutes: tuple[MinuteReport, ...] = ()  # for a level of several minutes
    arrivals: str = "fixed"
    refusals: RefusalFigures | None = None
    uploads: UploadFigures | None = None
    handover_ms: Spread | None = None  # with `split`: from the model thread to the event loop
    write_ms: Spread | None = None  # with `split`: from the text of a result to the socket
    parts: Composition | None = None  # with `split`


def minutes_in(seconds: float, period_s: float = MINUTE_S) -> int:
    """Return the number of minutes, or of periods of `period_s`, including a partial one; tolerates rounding errors."""
    return max(1, math.ceil(seconds / period_s - 1e-6))


class Ending(enum.Enum):
    """How a playback ended."""

    COMPLETE = "complete"
    CUT = "cut"  # at the end of the level, with results for everything sent
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an ended playback."""

    recording: Recording
    ending: Ending
    problem: str = ""
    text: str = ""
    retry_after_s: float | None = None  # from a refusal


class SentStep(NamedTuple):
    """Times at which a step was due, the connection was open, and the step was sent."""

    scheduled_s: float
    opened_s: float
    sent_s: float


class LevelMeasures:
    """Collects the figures of a level: steps scheduled within the measured window, and all playbacks."""

    def __init__(self, from_s: float, to_s: float, references: Mapping[str, str], period_s: float = MINUTE_S) -> None:
        self.final_ = Latencies()
        self.refusal = Latencies()
        self.queue_wait, self.step, self.decode = Latencies(), Latencies(), Latencies()
        self.handover, self.write = Latencies(), Latencies()
        self.parts = Breakdown()
        self.lag = Latencies()
        self.unanswered = 0
        self._covered_s = 0.0
        self._from_s, self._to_s = from_s, to_s
        self._references = references
        self._endings: Counter[Ending] = Counter()
        self._problems: Counter[str] = Counter()
        self._compared = 0
        self._mismatches: list[Mismatch] = []
        self._refused: Counter[int] = Counter()
        self._unadvised = 0
        self._period_s = period_s
        self.minutes = tuple(Latencies() for _ in range(minutes_in(to_s - from_s, period_s)))

    @property
    def chunk(self) -> Latencies:
        """Latencies of all steps."""
        return Latencies.merged(self.minutes)

    def covers(self, when_s: float) -> bool:
        """Whether a time is within the measured window."""
        return self._from_s <= when_s < self._to_s

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        """A whole step was covered by a `Results` message."""
        if self._from_s <= scheduled_s < self._to_s:
            minute = min(int((scheduled_s - self._from_s) / self._period_s), len(self.minutes) - 1)
            self.minutes[minute].add(answered_s - scheduled_s)

    def covered(self, audio_s: float, answered_s: float) -> None:
        """A result covered this many more seconds of audio."""
        if self._from_s <= answered_s < self._to_s:
            self._covered_s += audio_s

    def step_unanswered(self, scheduled_s: float, given_up_s: float) -> None:
        """A step will get no result: its age is a lower bound of its latency."""
        if self._from_s <= scheduled_s < self._to_s:
            self.unanswered += 1
        self.step_answered(scheduled_s, given_up_s)

    def step_timings(self, answered_s: float, timings: StepTimings) -> None:
        """The server's timings of one result."""
        if self._from_s <= answered_s < self._to_s:
            self.queue_wait.add(timings.queue_wait_ms * 1e-3)
            self.step.add(timings.step_ms * 1e-3)
            self.decode.add(timings.decode_ms * 1e-3)

    def split(self, sent: SentStep, answered_s: float, parts: LatencySplit) -> None:
        """Record all parts of the latency of one result."""
        if self._from_s <= sent.scheduled_s < self._to_s:
            self.handover.add(parts.handover_ms * 1e-3)
            self.write.add(parts.write_ms * 1e-3)
            could_s = max(sent.scheduled_s, sent.opened_s)
            opening_s = could_s - sent.scheduled_s
            self.parts.add(answered_s - sent.scheduled_s, opening_s, sent.sent_s - could_s, parts)

    def sent(self, scheduled_s: float, sent_s: float) -> None:
        """A message was sent; its delay is the generator's own lag."""
        if self._from_s <= scheduled_s < self._to_s:
            self.lag.add(sent_s - scheduled_s)

    def final(self, scheduled_s: float, answered_s: float) -> None:
        """The last final of a completely sent recording was received."""
        if self._from_s <= scheduled_s < self._to_s:
            self.final_.add(answered_s - scheduled_s)

    def refused(self, dialed_s: float, answered_s: float, refusal: Refused) -> None:
        """A handshake was refused with an HTTP error."""
        if self.covers(dialed_s):
            self.refusal.add(answered_s - dialed_s)
            self._refused[refusal.status] += 1
            self._unadvised += refusal.retry_after_s is None

    def ended(self, outcome: Outcome) -> None:
        """Count an ended playback; if it is complete, compare its text with the reference."""
        self._endings[outcome.ending] += 1
        if outcome.problem:
            self._problems[outcome.problem] += 1
        if outcome.ending is Ending.COMPLETE:
            name = str(outcome.recording.path)
            self._compared += 1
            if outcome.text != self._references[name]:
                self._mismatches.append(Mismatch(name, self._references[name], outcome.text))

    def report(
        self,
        *,
        streams: int,
        to_s: float,
        policy: str,
        generator_cpu_cores: float,
        server: ServerFigures,
        by_minute: Sequence[ServerFigures] = (),
        arrivals: str = "fixed",
        uploads: UploadFigures | None = None,
    ) -> LevelReport:
        """Return the report of the level; `to_s` is the actual end of the window, if it was stopped early."""
        seconds = max(0.0, min(self._to_s, to_s) - self._from_s)
        steps = sum(len(minute) for minute in self.minutes)
        return LevelReport(
            streams=streams,
            seconds=round(seconds, 3),
            policy=policy,
            chunk_latency_ms=self.chunk.spread(),
            final_latency_ms=self.final_.spread(),
            queue_wait_ms=self.queue_wait.spread(),
            step_ms=self.step.spread(),
            decode_ms=self.decode.spread(),
            steps=steps,
            unanswered=self.unanswered,
            audio_s_per_s=round(self._covered_s / seconds, 2) if seconds else 0.0,
            complete=self._endings[Ending.COMPLETE],
            cut=self._endings[Ending.CUT],
            compared=self._compared,
            mismatched=len(self._mismatches),
            refused=self._endings[Ending.REFUSED],
            failed=self._endings[Ending.FAILED],
            problems=dict(self._problems.most_common(SHOWN_PROBLEMS)),
            mismatches=tuple(self._mismatches[:SHOWN_MISMATCHES]),
            generator_lag_ms=self.lag.spread(),
            generator_cpu_cores=round(generator_cpu_cores, 3),
            server=server,
            minutes=self._by_minute(by_minute),
            arrivals=arrivals,
            refusals=self._refusals(),
            uploads=uploads,
            handover_ms=self.handover.spread(),
            write_ms=self.write.spread(),
            parts=self.parts.composition(),
        )

    def _refusals(self) -> RefusalFigures | None:
        if not self._refused:
            return None
        return RefusalFigures(self.refusal.spread(), dict(self._refused), self._unadvised)

    def _by_minute(self, servers: Sequence[ServerFigures]) -> tuple[MinuteReport, ...]:
        """Return the measured minutes; empty for a level of one minute."""
        if len(self.minutes) < 2:
            return ()
        return tuple(
            MinuteReport(latencies.spread(), servers[number] if number < len(servers) else ServerFigures())
            for number, latencies in enumerate(self.minutes)
            if len(latencies)
        )
