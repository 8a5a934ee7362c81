"""Figures of one level: latencies while it runs, a report when it is over.

Owns the counters and the measured window. Knows no socket and no clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from loadtest.generator.answers import LatencySplit
from loadtest.generator.latencies import Latencies, Spread
from loadtest.generator.parts import Breakdown, Composition
from loadtest.generator.playback import Ending, Outcome, Recorder, SentStep
from loadtest.generator.settings import STEP_S
from tutti_asr_client.errors import Refused
from tutti_asr_client.messages import StepTimings

MINUTE_S = 60.0
SHOWN_MISMATCHES = 5
SHOWN_PROBLEMS = 20


class Mismatch(msgspec.Struct, frozen=True):
    """A recording whose text under load differs from its reference text (`alone`)."""

    recording: str
    alone: str
    under_load: str


class ServerFigures(msgspec.Struct, frozen=True):
    """Figures of the level from the server's `/metrics`; None for those that it does not have."""

    mean_batch: float | None = None
    cpu_cores: float | None = None
    decode_cores: float | None = None  # seconds spent decoding in a second: the share of one core
    memory_mib: float | None = None  # resident, at the end
    decoder_mib: float | None = None  # of it, what the decoder says that it holds
    sessions: float | None = None  # open at the end
    limit: float | None = None  # of sessions, at the end
    slowdown: float | None = None  # of batches against the warm-up, at the end
    batch_sizes: dict[int, int] | None = None  # by class: at most this number of rows, and more than the class before


class MinuteReport(msgspec.Struct, frozen=True):
    """One minute of a level that lasts several, or one part of it of another length (`LoadSettings.period_s`)."""

    chunk_latency_ms: Spread | None
    server: ServerFigures


class RefusalFigures(msgspec.Struct, frozen=True):
    """Handshakes that were refused while the level was measured; from dialling to the answer."""

    answer_ms: Spread | None
    statuses: dict[int, int]
    without_retry_after: int


class UploadFigures(msgspec.Struct, frozen=True):
    """Uploads that were posted beside the live streams."""

    at_a_time: int
    done: int
    refused: int
    failed: int
    audio_s_per_s: float


class LevelReport(msgspec.Struct, frozen=True):
    """One level as it stands in the JSON document."""

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
    minutes: tuple[MinuteReport, ...] = ()  # of a level of more than one
    arrivals: str = "fixed"
    refusals: RefusalFigures | None = None
    fast_latency_ms: Spread | None = None  # of the streams that send faster than speech, which no other figure counts
    uploads: UploadFigures | None = None
    handover_ms: Spread | None = None  # with `split`: from the model's thread to the event loop's
    write_ms: Spread | None = None  # with `split`: from a result's text to the socket
    parts: Composition | None = None  # with `split`


def minutes_in(seconds: float, period_s: float = MINUTE_S) -> int:
    """Whole and begun minutes, or parts of `period_s`; what rounding has added begins none."""
    return max(1, math.ceil(seconds / period_s - 1e-6))


class LevelMeasures(Recorder):
    """Collects one level: steps scheduled inside the measured window, and all playbacks."""

    def __init__(self, from_s: float, to_s: float, references: Mapping[str, str], period_s: float = MINUTE_S) -> None:
        self.final_ = Latencies()
        self.fast = FastMeasures(self)
        self.refusal = Latencies()
        self.queue_wait, self.step, self.decode = Latencies(), Latencies(), Latencies()
        self.handover, self.write = Latencies(), Latencies()
        self.parts = Breakdown()
        self.lag = Latencies()
        self.unanswered = 0
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
        """The latencies of all steps."""
        return Latencies.merged(self.minutes)

    def covers(self, when_s: float) -> bool:
        """True for a time inside the measured window."""
        return self._from_s <= when_s < self._to_s

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        """A whole step was covered by a `Results`."""
        if self._from_s <= scheduled_s < self._to_s:
            minute = min(int((scheduled_s - self._from_s) / self._period_s), len(self.minutes) - 1)
            self.minutes[minute].add(answered_s - scheduled_s)

    def step_unanswered(self, scheduled_s: float, given_up_s: float) -> None:
        """A step that no `Results` will cover: its age is the least that its latency can be."""
        if self._from_s <= scheduled_s < self._to_s:
            self.unanswered += 1
        self.step_answered(scheduled_s, given_up_s)

    def step_timings(self, answered_s: float, timings: StepTimings) -> None:
        """The server's own account of one answer."""
        if self._from_s <= answered_s < self._to_s:
            self.queue_wait.add(timings.queue_wait_ms * 1e-3)
            self.step.add(timings.step_ms * 1e-3)
            self.decode.add(timings.decode_ms * 1e-3)

    def split(self, sent: SentStep, answered_s: float, parts: LatencySplit) -> None:
        """All parts of one answer."""
        if self._from_s <= sent.scheduled_s < self._to_s:
            self.handover.add(parts.handover_ms * 1e-3)
            self.write.add(parts.write_ms * 1e-3)
            could_s = max(sent.scheduled_s, sent.opened_s)
            opening_s = could_s - sent.scheduled_s
            self.parts.add(answered_s - sent.scheduled_s, opening_s, sent.sent_s - could_s, parts)

    def sent(self, scheduled_s: float, sent_s: float) -> None:
        """A message left; how late it did is the generator's own lag."""
        if self._from_s <= scheduled_s < self._to_s:
            self.lag.add(sent_s - scheduled_s)

    def final(self, scheduled_s: float, answered_s: float) -> None:
        """A recording that was sent whole got its last final."""
        if self._from_s <= scheduled_s < self._to_s:
            self.final_.add(answered_s - scheduled_s)

    def refused(self, dialled_s: float, answered_s: float, refusal: Refused) -> None:
        """A handshake was answered with an HTTP error."""
        if self.covers(dialled_s):
            self.refusal.add(answered_s - dialled_s)
            self._refused[refusal.status] += 1
            self._unadvised += refusal.retry_after_s is None

    def ended(self, outcome: Outcome) -> None:
        """A playback is over: count it; if it is complete, compare its text with the reference."""
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
        """The level in figures; `to_s` is where the window really ended, should it have been stopped."""
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
            audio_s_per_s=round((steps - self.unanswered) * STEP_S / seconds, 2) if seconds else 0.0,
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
            fast_latency_ms=self.fast.latencies.spread(),
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
        """The minutes that were measured; empty for a level of one."""
        if len(self.minutes) < 2:
            return ()
        return tuple(
            MinuteReport(latencies.spread(), servers[number] if number < len(servers) else ServerFigures())
            for number, latencies in enumerate(self.minutes)
            if len(latencies)
        )


class FastMeasures(Recorder):
    """Streams that send faster than speech: their steps wait for their own backlog, and count apart."""

    def __init__(self, level: LevelMeasures) -> None:
        self.latencies = Latencies()
        self._level = level

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        """As `LevelMeasures`."""
        if self._level.covers(scheduled_s):
            self.latencies.add(answered_s - scheduled_s)

    def step_unanswered(self, scheduled_s: float, given_up_s: float) -> None:
        """As `LevelMeasures`."""
        if self._level.covers(scheduled_s):
            self._level.unanswered += 1
        self.step_answered(scheduled_s, given_up_s)

    def refused(self, dialled_s: float, answered_s: float, refusal: Refused) -> None:
        """As `LevelMeasures`."""
        self._level.refused(dialled_s, answered_s, refusal)
