"""One level of load: N concurrent streams until the end, each recording on its own connection.

Owns the choice of recordings, start times and the end of the level.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from loadtest.generator.connection import Dialer
from loadtest.generator.frames import TEXT, masked
from loadtest.generator.measures import Ending, LevelMeasures, Outcome
from loadtest.generator.playback import Playback
from loadtest.generator.recordings import Recording, choose
from loadtest.generator.settings import STEP_S, Arrivals
from loadtest.generator.timers import Pacer
from tutti_asr_client.errors import Refused

START_SPREAD_S = 1.0
"""Streams start at random times within the first second, so that their steps do not arrive together; within half of
a short warm-up, so that all are live when measuring begins; and over at least one step."""

LEAD_S = 0.05
"""Time between scheduling the streams and the first start, so that the generator does not start late."""

DIAL_AFTER_S = STEP_S / 2
"""A connection is opened in the middle of its first step: early enough before the step is sent, and late enough after
the previous recording's end for its slot to be free."""

RETRY_S = 1.0
"""Wait of a refused client if there is no Retry-After."""

JITTER = 0.25
"""Share by which a client's wait varies, so that clients do not retry in lockstep."""

CLOSE_STREAM = masked(TEXT, b'{"type":"CloseStream"}')


@dataclass(frozen=True, slots=True)
class Schedule:
    """Clock times of a level: streams begin after `begin_s` and are measured from `from_s` until `end_s`."""

    begin_s: float
    from_s: float
    end_s: float
    spread_s: float

    @classmethod
    def starting(cls, now: float, *, warmup_s: float, seconds: float) -> Schedule:
        """Return the schedule of a level that begins now."""
        begin_s = now + LEAD_S
        spread_s = min(START_SPREAD_S, max(STEP_S, warmup_s / 2))
        return cls(begin_s, begin_s + warmup_s, begin_s + warmup_s + seconds, spread_s)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Arrival mode of a level."""

    arrivals: Arrivals = Arrivals.FIXED
    retry: bool = False
    long_steps: bool = False
    under_way: bool = False  # the first streams begin anywhere in their recordings, as those of independent callers


class Level:
    """Plays N streams until `end_s`, which becomes earlier if it is stopped."""

    def __init__(
        self,
        schedule: Schedule,
        measures: LevelMeasures,
        *,
        recordings: Sequence[Recording],
        dialer: Dialer,
        rng: random.Random,
        clock: Callable[[], float],
        traffic: Traffic = Traffic(),
    ) -> None:
        self.end_s = schedule.end_s
        self._traffic = traffic
        self._schedule = schedule
        self._measures = measures
        self._recordings = recordings
        self._dialer = dialer
        self._rng = rng
        self._clock = clock
        self._pacer = Pacer(asyncio.get_running_loop(), clock)
        self._playing: set[Player] = set()
        self._waiting: set[int] = set()  # numbers of refused streams that retry
        self._number = 0
        self._quiet = asyncio.Event()  # set when no player is left
        self._quiet.set()

    async def run(self, streams: int, *, stop: asyncio.Event, drain_s: float) -> float:
        """Play until the end or until `stop`, then wait for the last results; returns the CPU seconds used."""
        for _ in range(streams):
            start_s = self._schedule.begin_s + self._rng.random() * self._schedule.spread_s
            self._begin(start_s, under_way=self._traffic.under_way)
        if self._traffic.arrivals is Arrivals.CHURN:
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
        """A player has ended; `outcome` is None if the level was over before it began."""
        self._playing.discard(player)
        if outcome is not None:
            self._measures.ended(outcome)
        refused = outcome is not None and outcome.ending is Ending.REFUSED
        wait_s = retry_s(outcome.retry_after_s, self._rng) if refused and outcome is not None else 0.0
        if refused and self._traffic.retry and self._traffic.arrivals is Arrivals.FIXED:
            self._waiting.add(player.number)
            again_s = self._clock() + wait_s
            self._pacer.at(again_s, lambda: self._begin(again_s))
        if not self._playing:
            self._quiet.set()

    def _await_arrival(self, after_s: float, arrivals_hz: float) -> None:
        """Schedule the next arrival of a Poisson process."""
        start_s = after_s + self._rng.expovariate(arrivals_hz)
        if start_s < self.end_s:
            self._pacer.at(start_s, lambda: self._arrive(start_s, arrivals_hz))

    def _arrive(self, start_s: float, arrivals_hz: float) -> None:
        self._begin(start_s)
        self._await_arrival(start_s, arrivals_hz)

    def _begin(self, start_s: float, *, under_way: bool = False) -> None:
        """Play one recording from `start_s`; with fixed arrivals, the next one follows at its end."""
        left_s = self.end_s - start_s
        if left_s < STEP_S:
            return
        churning = self._traffic.arrivals is Arrivals.CHURN  # these streams do not end with the level
        recording = self._rng.choice(self._recordings) if churning else choose(self._recordings, left_s, self._rng)
        if under_way:
            recording = recording.after(self._rng.randrange(len(recording.messages)))
        playback = Playback(recording, start_s, self._measures, long_steps=self._traffic.long_steps)
        number = self._play(playback).number
        if self._traffic.arrivals is Arrivals.FIXED:
            self._pacer.at(playback.end_s, lambda: self._follow(number, playback.end_s))

    def _follow(self, number: int, start_s: float) -> None:
        """Continue a stream with another recording at the end of its audio, unless it waits after a refusal."""
        if number in self._waiting:
            self._waiting.discard(number)
        else:
            self._begin(start_s)

    def _play(self, playback: Playback) -> Player:
        self._number += 1
        player = Player(playback, self, self._pacer, self._dialer, self._clock, number=self._number)
        self._playing.add(player)
        self._quiet.clear()
        return player


class Player:
    """Plays one recording on its own connection: sends each message at its scheduled time, without awaiting results."""

    __slots__ = ("_clock", "_connection", "_dialer", "_level", "_opening", "_over", "_pacer", "_playback", "number")

    def __init__(
        self,
        playback: Playback,
        level: Level,
        pacer: Pacer,
        dialer: Dialer,
        clock: Callable[[], float],
        *,
        number: int = 0,
    ) -> None:
        self.number = number  # unique within a level
        self._playback = playback
        self._level = level
        self._pacer = pacer
        self._dialer = dialer
        self._clock = clock
        self._connection = dialer.connection(self, playback.recording.language)
        self._opening: asyncio.Task[None] | None = None
        self._over = False
        pacer.at(playback.start_s + DIAL_AFTER_S, self._dial)

    def opened(self, now: float) -> None:
        """The server has accepted the stream."""
        self._playback.opened(now)
        self._tick()

    def message(self, frame: bytes, now: float) -> None:
        """A text message was received."""
        self._playback.message(frame, now)

    def refused(self, refusal: Refused, now: float) -> None:
        """The server refused the handshake with an HTTP error."""
        self._end(self._playback.refused(refusal, now))

    def closed(self, code: int, reason: str, now: float) -> None:
        """The connection has ended."""
        self._end(self._playback.closed(code, reason, now))

    def abandon(self, problem: str) -> None:
        """Abort the connection with this problem as outcome."""
        if self._opening is not None:
            self._opening.cancel()
        self._end(self._playback.failed(problem, self._clock()))
        self._connection.abort()

    def _dial(self) -> None:
        now = self._clock()
        if now >= self._level.end_s:
            self._end(None)
        else:
            self._playback.dialed(now)
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._dialer.open(self._connection)
        except OSError as error:
            self._end(self._playback.failed(f"cannot connect: {error.strerror or error}", self._clock()))

    def _tick(self) -> None:
        """Send messages that are due; close the stream after the last one or at the end of the level."""
        playback, connection = self._playback, self._connection
        if self._over or not connection.is_open:
            return
        while (scheduled_s := playback.next_s) is not None:
            now = self._clock()
            if scheduled_s > now:
                self._pacer.at(scheduled_s, self._tick)
                return
            if scheduled_s >= self._level.end_s:
                break
            connection.send(playback.take(now))
        playback.close(playback.end_s if scheduled_s is None else scheduled_s)
        connection.send(CLOSE_STREAM)

    def _end(self, outcome: Outcome | None) -> None:
        if not self._over:
            self._over = True
            self._level.ended(self, outcome)


async def _within(seconds: float, waiting: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, max(0.0, seconds))


def rate_hz(streams: int, mean_s: float) -> float:
    """Return the arrivals per second that keep `streams` of length `mean_s` live on average. Source: Little's law."""
    return streams / mean_s


def retry_s(advised_s: float | None, rng: random.Random) -> float:
    """Return the wait of a refused client before its next handshake, with jitter."""
    wait_s = RETRY_S if advised_s is None else advised_s
    return wait_s * rng.uniform(1 - JITTER, 1 + JITTER)
