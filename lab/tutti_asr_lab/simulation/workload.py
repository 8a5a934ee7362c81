"""Workloads: live streams, and streams that start and end.

Owns the random choices of a load, all from one seed. Independent of the batcher.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tutti_asr_lab.simulation.calibration import SecondPasses


@dataclass(frozen=True, slots=True)
class Churn:
    """Streams that end: each lasts an exponentially distributed time, and another one follows.

    At its end a stream runs `flush_steps` more, which output the frames that the model still holds; they are not timed.
    """

    mean_s: float
    flush_steps: int = 0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Additional streams that all connect within the duration of one message, from `at_s` on."""

    count: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Live:
    """Streams that send in real time: a message of `steps` steps every `steps` · `step_s` seconds.

    The first messages are due at random times within one message's duration. `jitter_s`: largest random delay of a
    message, at most the time between two messages.
    """

    count: int
    step_s: float = 0.08
    jitter_s: float = 0.0
    steps: int = 1
    budget_s: float = 0.1
    churn: Churn | None = None
    crowd: Crowd | None = None
    passes: SecondPasses | None = None
    """Second passes of each stream, which begins anywhere in their audio. The segment that its end cuts has none."""

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if self.count < 0 or self.steps < 1 or min(self.step_s, self.budget_s) <= 0:
            raise ValueError("a live load needs positive step_s, budget_s and steps, and no negative count")
        if not 0 <= self.jitter_s <= self.step_s * self.steps:
            raise ValueError(
                f"jitter_s must be between 0 and the time between two messages ({self.step_s * self.steps:g} s), "
                f"not {self.jitter_s:g}"
            )


@dataclass(frozen=True, slots=True)
class Message:
    """Message with `steps` steps of a stream, due at `due_s`; 0 steps = its handshake; `last` ends the stream."""

    due_s: float
    stream: int
    steps: int
    budget_s: float
    last: bool = False
    timed: bool = True
    pass_s: float = 0.0
    """Processor time of the second pass over the segment that ends with it; 0 = none does."""


Due = tuple[float, int, Message]


class Arrivals:
    """Endless messages in order of due time."""

    def __init__(self, load: Live, seed: int) -> None:
        self._rng = random.Random(seed)
        self._streams = 0
        self._order = 0
        self._due: list[Due] = []
        self._sources: list[Iterator[Message]] = []
        for start_s in self._starts(load):
            self._add(self._speak(load, start_s))
        crowd, period_s = load.crowd, load.step_s * load.steps
        for _ in range(crowd.count if crowd is not None else 0):
            assert crowd is not None
            self._add(self._speak(load, crowd.at_s + self._rng.random() * period_s, opens=True))

    def __iter__(self) -> Iterator[Message]:
        """Yield messages in order of due time."""
        due, sources = self._due, self._sources
        while due:
            _, number, message = due[0]
            yield message
            following = next(sources[number])  # its due time is not earlier
            heapq.heapreplace(due, (following.due_s, number, following))

    def _add(self, source: Iterator[Message]) -> None:
        message = next(source)
        heapq.heappush(self._due, (message.due_s, len(self._sources), message))
        self._sources.append(source)

    def _starts(self, load: Live) -> list[float]:
        period_s = load.step_s * load.steps
        return [self._rng.random() * period_s for _ in range(load.count)]

    def _speak(self, load: Live, start_s: float, *, opens: bool = False) -> Iterator[Message]:
        """Messages of one stream after another; without churn of one endless stream.

        The first is open already, unless it `opens`.
        """
        period_s, rng = load.step_s * load.steps, self._rng
        for number in itertools.count():
            stream = self._streams
            self._streams += 1
            spoken = None if load.churn is None else max(1, round(rng.expovariate(1 / load.churn.mean_s) / period_s))
            if number or opens:
                yield Message(start_s, stream, 0, load.budget_s, timed=False)
            yield from self._messages(load, stream, start_s, spoken)
            assert load.churn is not None, "a stream without churn never ends"
            assert spoken is not None
            start_s += spoken * period_s + load.jitter_s  # not before the previous stream's last message

    def _messages(self, load: Live, stream: int, start_s: float, spoken: int | None) -> Iterator[Message]:
        period_s, number, passes = load.step_s * load.steps, 0, load.passes
        ended = {} if passes is None else dict(zip(passes.steps, passes.seconds, strict=True))
        begin = 0 if passes is None else self._rng.randrange(passes.audio_steps)
        flush = load.churn.flush_steps if load.churn is not None else 0
        while spoken is None or number < spoken:
            pass_s = 0.0
            if passes is not None:
                steps = range(begin + number * load.steps, begin + (number + 1) * load.steps)
                pass_s = sum(ended.get(step % passes.audio_steps, 0.0) for step in steps)
            number += 1
            due_s = start_s + number * period_s + (self._rng.random() * load.jitter_s if load.jitter_s else 0.0)
            last = number == spoken
            yield Message(due_s, stream, load.steps, load.budget_s, last and not flush, pass_s=pass_s)
            if last and flush:
                yield Message(due_s, stream, flush, load.budget_s, last=True, timed=False)
