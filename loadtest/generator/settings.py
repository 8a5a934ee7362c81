"""Settings of a load test."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import BadSettings

SAMPLE_RATE = 16000
"""Sample rate of sent audio in Hz: the model's, so that no resampling is measured."""

STEP_S = 0.08
"""Length of one message: the server's default step."""

STEP_SAMPLES = round(STEP_S * SAMPLE_RATE)

SHORTEST_STREAM_S = 1.0
SHORTEST_PERIOD_S = 0.5
"""Shortest period; the server's metrics are read at the end of each."""

MAX_STREAMS = 10_000
MAX_SECONDS = 3600.0
"""Limits against typing errors: the ports of one address, and an hour."""


class Arrivals(enum.Enum):
    """Arrival mode: when streams start."""

    FIXED = "fixed"  # a new stream follows each ended one: N streams are always live
    CHURN = "churn"  # Poisson arrivals, at the rate that keeps N streams live on average


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """A load test: consecutive levels, each with a number of streams for `seconds` after the warm-up."""

    url: str
    streams: tuple[int, ...]
    seconds: float = 20.0
    level_seconds: tuple[float, ...] = ()  # by level; empty: `seconds` for all
    warmup_s: float = 2.0
    drain_s: float = 10.0  # time for results after the last audio
    manifest: Path | None = None  # None: the shipped recordings
    max_recordings: int = 40  # each is first recognized without load, which takes time
    seed: int = 1
    api_key: str | None = None
    policy_label: str = ""
    arrivals: Arrivals = Arrivals.FIXED
    stream_s: float | None = None  # approximate length of composed streams; None: a recording is a stream
    retry: bool = False  # refused streams retry after Retry-After, not with their next recording
    give_up_ms: float | None = None  # stop after a level with a higher p98
    long_steps: bool = True  # only messages that complete a step of the model are measured: it may be longer
    split: bool = False  # request the parts of each result's latency (`latency=true`)
    uploads: int = 0  # concurrent uploads alongside the live streams
    period_s: float = 60.0  # latencies are also reported by period of this length

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        check_streams(self.streams)
        if not 0.0 < self.seconds <= MAX_SECONDS:
            raise BadSettings(f"seconds must be above 0 and at most {MAX_SECONDS:g}")
        if self.level_seconds and len(self.level_seconds) != len(self.streams):
            raise BadSettings(
                f"{len(self.level_seconds)} lengths for {len(self.streams)} levels: must be one for each level"
            )
        if not all(0.0 < seconds <= MAX_SECONDS for seconds in self.level_seconds):
            raise BadSettings(f"seconds must be above 0 and at most {MAX_SECONDS:g}")
        if self.warmup_s < 0.0 or self.drain_s <= 0.0 or self.max_recordings < 1:
            raise BadSettings("warmup_s must be at least 0, drain_s above 0 and max_recordings at least 1")
        if self.uploads < 0:
            raise BadSettings("uploads must be at least 0")
        if self.period_s < SHORTEST_PERIOD_S:
            raise BadSettings(f"period_s {self.period_s:g}: must be at least {SHORTEST_PERIOD_S:g}")
        if self.stream_s is not None and self.stream_s < SHORTEST_STREAM_S:
            raise BadSettings(f"stream length {self.stream_s:g} s: must be at least {SHORTEST_STREAM_S:g} s")

    @property
    def levels(self) -> tuple[tuple[int, float], ...]:
        """Streams and seconds of each level."""
        seconds = self.level_seconds or (self.seconds,) * len(self.streams)
        return tuple(zip(self.streams, seconds, strict=True))


def check_streams(streams: tuple[int, ...]) -> None:
    """Raises: BadSettings."""
    if not streams or not all(1 <= count <= MAX_STREAMS for count in streams):
        raise BadSettings(f"streams {streams}: must be from 1 to {MAX_STREAMS}")


def parse_streams(text: str) -> tuple[int, ...]:
    """Parse levels such as `10,50,100`.

    Raises:
        BadSettings: it is not a list of whole numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise BadSettings("must be whole numbers with commas, such as 10,50,100") from error
