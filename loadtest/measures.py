"""Numbers of one level: histograms while it runs, a report when it is over.

Owns what is counted and inside which window. Knows no socket and no clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from clients.messages import StepTimings
from loadtest.latencies import Latencies, Spread
from loadtest.playback import Ending, Outcome
from loadtest.settings import STEP_S

MINUTE_S = 60.0
SHOWN_MISMATCHES = 5
SHOWN_PROBLEMS = 20


class Mismatch(msgspec.Struct, frozen=True):
    """A recording whose text under load was not the one that it has alone."""

    recording: str
    alone: str
    under_load: str


class ServerFigures(msgspec.Struct, frozen=True):
    """What the server's `/metrics` say about the level; None where they do not."""

    mean_batch: float | None = None
    cpu_cores: float | None = None
    decode_cores: float | None = None  # seconds spent decoding in a second: the share of one core
    memory_mib: float | None = None  # resident, at the end
    decoder_mib: float | None = None  # of it, what the decoder says that it holds


class MinuteReport(msgspec.Struct, frozen=True):
    """One minute of a level that lasts several."""

    chunk_latency_ms: Spread | None
    server: ServerFigures


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


def minutes_in(seconds: float) -> int:
    """Whole and begun minutes; what rounding has added begins none."""
    return max(1, math.ceil(seconds / MINUTE_S - 1e-6))


class LevelMeasures:
    """Collects one level: steps scheduled inside the window, and every playback whenever it was."""

    def __init__(self, from_s: float, to_s: float, alone: Mapping[str, str]) -> None:
        self.chunk = Latencies()
        self.final_ = Latencies()
        self.queue_wait, self.step, self.decode = Latencies(), Latencies(), Latencies()
        self.lag = Latencies()
        self.steps = 0
        self.unanswered = 0
        self._from_s, self._to_s = from_s, to_s
        self._alone = alone
        self._endings: Counter[Ending] = Counter()
        self._problems: Counter[str] = Counter()
        self._compared = 0
        self._mismatches: list[Mismatch] = []
        self._minutes = [Latencies() for _ in range(minutes_in(to_s - from_s))]

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        """A whole step was covered by a `Results`."""
        if self._from_s <= scheduled_s < self._to_s:
            self.steps += 1
            self.chunk.add(answered_s - scheduled_s)
            minute = min(int((scheduled_s - self._from_s) // MINUTE_S), len(self._minutes) - 1)
            self._minutes[minute].add(answered_s - scheduled_s)

    def step_unanswered(self, scheduled_s: float, given_up_s: float) -> None:
        """It never was: its age is the least that its latency can be."""
        if self._from_s <= scheduled_s < self._to_s:
            self.unanswered += 1
        self.step_answered(scheduled_s, given_up_s)

    def step_timings(self, answered_s: float, timings: StepTimings) -> None:
        """The server's own account of one answer."""
        if self._from_s <= answered_s < self._to_s:
            self.queue_wait.add(timings.queue_wait_ms * 1e-3)
            self.step.add(timings.step_ms * 1e-3)
            self.decode.add(timings.decode_ms * 1e-3)

    def sent(self, scheduled_s: float, sent_s: float) -> None:
        """A message left; how late it did is the generator's own lag."""
        if self._from_s <= scheduled_s < self._to_s:
            self.lag.add(sent_s - scheduled_s)

    def final(self, scheduled_s: float, answered_s: float) -> None:
        """A recording that was sent whole got its last final."""
        if self._from_s <= scheduled_s < self._to_s:
            self.final_.add(answered_s - scheduled_s)

    def ended(self, outcome: Outcome) -> None:
        """A playback is over: count it, and compare its text if it was complete."""
        self._endings[outcome.ending] += 1
        if outcome.problem:
            self._problems[outcome.problem] += 1
        if outcome.ending is Ending.COMPLETE:
            name = str(outcome.recording.path)
            self._compared += 1
            if outcome.text != self._alone[name]:
                self._mismatches.append(Mismatch(name, self._alone[name], outcome.text))

    def report(
        self,
        *,
        streams: int,
        to_s: float,
        policy: str,
        generator_cpu_cores: float,
        server: ServerFigures,
        by_minute: Sequence[ServerFigures] = (),
    ) -> LevelReport:
        """The level in figures; `to_s` is where the window really ended, should it have been stopped."""
        seconds = max(0.0, min(self._to_s, to_s) - self._from_s)
        return LevelReport(
            streams=streams,
            seconds=round(seconds, 3),
            policy=policy,
            chunk_latency_ms=self.chunk.spread(),
            final_latency_ms=self.final_.spread(),
            queue_wait_ms=self.queue_wait.spread(),
            step_ms=self.step.spread(),
            decode_ms=self.decode.spread(),
            steps=self.steps,
            unanswered=self.unanswered,
            audio_s_per_s=round((self.steps - self.unanswered) * STEP_S / seconds, 2) if seconds else 0.0,
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
        )

    def _by_minute(self, servers: Sequence[ServerFigures]) -> tuple[MinuteReport, ...]:
        """The minutes that were measured; one alone is the level itself."""
        if len(self._minutes) < 2:
            return ()
        return tuple(
            MinuteReport(latencies.spread(), servers[number] if number < len(servers) else ServerFigures())
            for number, latencies in enumerate(self._minutes)
            if latencies.spread() is not None
        )
