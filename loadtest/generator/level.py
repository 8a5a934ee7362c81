"""One level: N streams for a while, then whatever they make of it.

Owns who plays what and when, and when it ends. Knows no percentiles and prints nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from loadtest.generator.arrivals import Arrivals, rate_hz, retry_s
from loadtest.generator.connection import Dialler
from loadtest.generator.measures import LevelMeasures
from loadtest.generator.pacer import Pacer
from loadtest.generator.playback import Ending, Outcome, Playback
from loadtest.generator.player import Player
from loadtest.generator.recordings import Recording, choose
from loadtest.generator.settings import STEP_S

START_SPREAD_S = 1.0
"""Streams start at random within the first second, so that their steps do not arrive together; with a short
warm-up within its half, so that all play when measuring begins, and always over one step."""

LEAD_S = 0.05
"""Between scheduling the streams and the first start: the generator must not begin late."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Clock times of a level: streams begin after `begin_s`, and are measured from `from_s` until `end_s`."""

    begin_s: float
    from_s: float
    end_s: float
    spread_s: float

    @classmethod
    def starting(cls, now: float, *, warmup_s: float, seconds: float) -> Schedule:
        """A level that begins at once."""
        begin_s = now + LEAD_S
        spread_s = min(START_SPREAD_S, max(STEP_S, warmup_s / 2))
        return cls(begin_s, begin_s + warmup_s, begin_s + warmup_s + seconds, spread_s)


@dataclass(frozen=True, slots=True)
class Manner:
    """How the streams of a level come, and what they do."""

    arrivals: Arrivals = Arrivals.FIXED
    retry: bool = False
    fast_streams: int = 0
    fast_factor: float = 1.0


class Level:
    """A stage for N streams; `end_s` moves forward when it is stopped early."""

    def __init__(
        self,
        schedule: Schedule,
        measures: LevelMeasures,
        *,
        recordings: Sequence[Recording],
        dialler: Dialler,
        rng: random.Random,
        clock: Callable[[], float],
        manner: Manner = Manner(),
    ) -> None:
        self.end_s = schedule.end_s
        self._manner = manner
        self._schedule = schedule
        self._measures = measures
        self._recordings = recordings
        self._dialler = dialler
        self._rng = rng
        self._clock = clock
        self._pacer = Pacer(asyncio.get_running_loop(), clock)
        self._playing: set[Player] = set()
        self._fast: set[Player] = set()  # of those that play
        self._waiting: set[int] = set()  # numbers of refused streams that come back by themselves
        self._number = 0
        self._quiet = asyncio.Event()  # nobody plays
        self._quiet.set()

    async def run(self, streams: int, *, stop: asyncio.Event, drain_s: float) -> float:
        """Play until the end or until `stop`, then wait for the last answers; returns CPU seconds used."""
        for _ in range(streams):
            self._begin(self._first_start_s())
        for _ in range(self._manner.fast_streams):
            self._begin_fast(self._first_start_s())
        if self._manner.arrivals is Arrivals.CHURN:
            mean_s = sum(recording.duration_s for recording in self._recordings) / len(self._recordings)
            self._await_arrival(self._schedule.begin_s, rate_hz(streams, mean_s))
        cpu_s = time.process_time()
        await _within(self.end_s - self._clock(), stop.wait())
        cpu_s = time.process_time() - cpu_s
        self.end_s = min(self.end_s, self._clock())
        await _within(drain_s, self._quiet.wait())
        for player in tuple(self._playing):
            player.abandon(f"no end within {drain_s:g} s of CloseStream")
        self._pacer.close()
        return cpu_s

    def ended(self, player: Player, outcome: Outcome | None) -> None:
        """A player is done."""
        self._playing.discard(player)
        if outcome is not None:
            self._measures.ended(outcome)
        refused = outcome is not None and outcome.ending is Ending.REFUSED
        wait_s = retry_s(outcome.retry_after_s, self._rng) if refused and outcome is not None else 0.0
        if player in self._fast:
            self._fast.discard(player)
            self._begin_fast(self._clock() + wait_s)
        elif refused and self._manner.retry and self._manner.arrivals is Arrivals.FIXED:
            self._waiting.add(player.number)
            again_s = self._clock() + wait_s
            self._pacer.at(again_s, lambda: self._begin(again_s))
        if not self._playing:
            self._quiet.set()

    def _first_start_s(self) -> float:
        return self._schedule.begin_s + self._rng.random() * self._schedule.spread_s

    def _await_arrival(self, after_s: float, arrivals_hz: float) -> None:
        """Begin a stream at a random time, and wait for the next: a Poisson process."""
        start_s = after_s + self._rng.expovariate(arrivals_hz)
        if start_s < self.end_s:
            self._pacer.at(start_s, lambda: self._arrive(start_s, arrivals_hz))

    def _arrive(self, start_s: float, arrivals_hz: float) -> None:
        self._begin(start_s)
        self._await_arrival(start_s, arrivals_hz)

    def _begin(self, start_s: float) -> None:
        """Play one recording from `start_s`, and the next when its audio has been spoken."""
        left_s = self.end_s - start_s
        if left_s < STEP_S:
            return
        churning = self._manner.arrivals is Arrivals.CHURN  # nobody hangs up earlier because we stop to look
        recording = self._rng.choice(self._recordings) if churning else choose(self._recordings, left_s, self._rng)
        playback = Playback(recording, start_s, self._measures)
        number = self._play(playback).number
        if self._manner.arrivals is Arrivals.FIXED:
            self._pacer.at(playback.end_s, lambda: self._follow(number, playback.end_s))

    def _follow(self, number: int, start_s: float) -> None:
        """The audio of a stream has been spoken: it goes on with another recording unless it waits to be let in."""
        if number in self._waiting:
            self._waiting.discard(number)
        else:
            self._begin(start_s)

    def _begin_fast(self, start_s: float) -> None:
        """Play a recording faster than speech; the next follows when this one has been answered."""
        if self.end_s - start_s < STEP_S:
            return
        playback = Playback(
            self._rng.choice(self._recordings), start_s, self._measures.fast, speed=self._manner.fast_factor
        )
        self._fast.add(self._play(playback))

    def _play(self, playback: Playback) -> Player:
        self._number += 1
        player = Player(playback, self, self._pacer, self._dialler, self._clock, number=self._number)
        self._playing.add(player)
        self._quiet.clear()
        return player


async def _within(seconds: float, waiting: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, max(0.0, seconds))
