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

from loadtest.connection import Dialler
from loadtest.measures import LevelMeasures
from loadtest.pacer import Pacer
from loadtest.playback import Outcome, Playback
from loadtest.player import Player
from loadtest.recordings import Recording, choose
from loadtest.settings import STEP_S

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
        once: bool = False,
    ) -> None:
        self.end_s = schedule.end_s
        self._once = once  # a stream ends with its recording, instead of playing the next one
        self._schedule = schedule
        self._measures = measures
        self._recordings = recordings
        self._dialler = dialler
        self._rng = rng
        self._clock = clock
        self._pacer = Pacer(asyncio.get_running_loop(), clock)
        self._playing: set[Player] = set()
        self._quiet = asyncio.Event()  # nobody plays
        self._quiet.set()

    async def run(self, streams: int, *, stop: asyncio.Event, drain_s: float) -> float:
        """Play until the end or until `stop`, then wait for the last answers; returns CPU seconds used."""
        for _ in range(streams):
            self._begin(self._schedule.begin_s + self._rng.random() * self._schedule.spread_s)
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
        if not self._playing:
            self._quiet.set()

    def _begin(self, start_s: float) -> None:
        """Play one recording from `start_s`, and the next when its audio has been spoken."""
        left_s = self.end_s - start_s
        if left_s < STEP_S:
            return
        playback = Playback(choose(self._recordings, left_s, self._rng), start_s, self._measures)
        self._playing.add(Player(playback, self, self._pacer, self._dialler, self._clock))
        self._quiet.clear()
        if not self._once:
            self._pacer.at(playback.end_s, lambda: self._begin(playback.end_s))


async def _within(seconds: float, waiting: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, max(0.0, seconds))
