"""Settings of one load test. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import BadSettings
from loadtest.generator.arrivals import Arrivals

SAMPLE_RATE = 16000
"""Hz of everything that is sent: the model's own rate, so that no resampling is measured."""

STEP_S = 0.08
"""One message: the server's default step."""

STEP_SAMPLES = round(STEP_S * SAMPLE_RATE)

SHORTEST_STREAM_S = 1.0
SHORTEST_PERIOD_S = 0.5
"""The server's metrics are read at the end of each."""

MAX_STREAMS = 10_000
MAX_SECONDS = 3600.0
"""Bounds against typing errors: ports of one address, and an hour."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """A load test: one level after another, each with its number of streams for `seconds` after the warm-up."""

    url: str
    streams: tuple[int, ...]
    seconds: float = 20.0
    level_seconds: tuple[float, ...] = ()  # of each level; empty: `seconds` for all
    warmup_s: float = 2.0
    drain_s: float = 10.0  # how long answers may take to come in after the last audio
    manifest: Path | None = None  # None: the shipped recordings
    max_recordings: int = 40  # each is first recognised without load, which takes time
    seed: int = 1
    api_key: str | None = None
    policy_label: str = ""
    arrivals: Arrivals = Arrivals.FIXED
    stream_s: float | None = None  # streams of about this length, made of recordings; None: a recording is a stream
    retry: bool = False  # refused streams come back after Retry-After, not with their next recording
    give_up_ms: float | None = None  # no further level after one whose p98 is more
    long_steps: bool = False  # the model's steps are longer than a message: one that ends none is not measured
    split: bool = False  # ask for the parts of each answer's latency (`latency=true`)
    uploads: int = 0  # recordings posted at a time, beside the live streams
    fast_streams: int = 0  # further streams that send `fast_factor` times as fast as speech
    fast_factor: float = 4.0
    period_s: float = 60.0  # a level's latencies are also reported by such parts of it

    def __post_init__(self) -> None:
        """Raises: BadSettings."""
        if not self.streams or not all(1 <= streams <= MAX_STREAMS for streams in self.streams):
            raise BadSettings(f"numbers of streams must be from 1 to {MAX_STREAMS}")
        if not 0.0 < self.seconds <= MAX_SECONDS:
            raise BadSettings(f"seconds must lie in 0…{MAX_SECONDS:g}")
        if self.level_seconds and len(self.level_seconds) != len(self.streams):
            raise BadSettings("seconds of levels must be as many as the levels")
        if not all(0.0 < seconds <= MAX_SECONDS for seconds in self.level_seconds):
            raise BadSettings(f"seconds must lie in 0…{MAX_SECONDS:g}")
        if self.warmup_s < 0.0 or self.drain_s <= 0.0 or self.max_recordings < 1:
            raise BadSettings("warm-up, drain and number of recordings must be positive")
        if self.uploads < 0 or self.fast_streams < 0 or self.fast_factor < 1.0:
            raise BadSettings("uploads and fast streams cannot be negative, nor a fast stream slower than speech")
        if self.period_s < SHORTEST_PERIOD_S:
            raise BadSettings(f"a part of a level must last {SHORTEST_PERIOD_S:g} s or more")
        if self.stream_s is not None and self.stream_s < SHORTEST_STREAM_S:
            raise BadSettings(f"streams must last {SHORTEST_STREAM_S:g} s or more")

    @property
    def levels(self) -> tuple[tuple[int, float], ...]:
        """(streams, seconds) of each level."""
        seconds = self.level_seconds or (self.seconds,) * len(self.streams)
        return tuple(zip(self.streams, seconds, strict=True))


def parse_streams(text: str) -> tuple[int, ...]:
    """The levels in text such as `10,50,100`.

    Raises:
        BadSettings: it is not a list of numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise BadSettings("must be whole numbers with commas, such as 10,50,100") from error
