"""Running estimate of the number of live streams that this replica can carry within its latency objective.

Pure: batches and times are arguments. The estimate is the least of three bounds:

- the model: under eager dispatch a batch holds the steps that came during the last one, so batches of `b` rows that
  take T(b) seconds mean b * step / T(b) streams, and a step waits for one batch and runs in the next;
- the thread that takes results and feeds steps, by the time that it computes, or waits for a core to compute on, for a
  batch of `b` rows, in the same way; where it serves several models, its time is divided by the rows of each;
- pressure: more than two late steps in a hundred, or other work that waits for long, mean too many streams, whatever
  the other bounds are. For minutes afterwards a reserve remains: what slowed the machine, another process for instance,
  comes again, and streams that were let in cannot be sent away then. Not so where a crowd came or went meanwhile:
  answering that is what made steps late, and it is answered whether streams enter or not.

The growth of times with the batch size is measured in the warm-up. What is tracked while serving is the slowdown
against those times, since model thread and event loop share cores, caches and the interpreter's lock.

Only periods of steady streams can lower the estimate by service times. While clients connect, or streams open and
close, for every few rows, the time of both threads goes to those, and would be charged to the rows. On an idle replica
the estimate returns to the warm-up's within a minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batching.policy.service_times import ServiceTimes

PERIOD_S = 0.5
HEADROOM = 0.7
"""Share of the possible load that is called capacity: queues grow without bound near 1, and streams that begin and end,
and clients that are refused, need time too. Source: the overloads in loadtest/LOG.md."""
LATE_SHARE = 0.02  # the objective is a 98th percentile
WARNING = 0.75
"""Share of the objective at which a step counts as late here: it is later still at the socket."""
LONG_WAIT_S = 0.5
"""Wait for other work that counts as too many streams: it takes milliseconds, so the queue before it grows."""
PRESSED_PERIODS = 2  # in a row: one may be a burst of streams that open, or a stall of the machine
RELIEF = 0.95
"""The bound under pressure, as a share of the open streams: streams that end are not replaced."""
GROWTH = 0.05
"""Rise per second of a bound set by pressure once there is none, as a share of `possible`, up to the reserve."""
RESERVE = 2 / 3
"""Share of `possible` that may be held back after pressure: all that a machine three times as slow does not carry. A
neighbour that takes half of each core, and the load generator beside it, slowed batches two to three times
(loadtest/LOG.md). A bound that pressure left higher stays where it is."""
CROWD = 32
"""Streams that ask to be let in, streams that end, or requests, within a period, from which on late steps are put down
to them. On two cores a full server of streams of 15 s has half as many, the overload in loadtest/LOG.md 130 at first
and 36 later. Where streams are short or cores many, ordinary arrivals are as many, and pressure leaves no reserve."""
CROWD_TAIL = 4
"""Periods after a crowd in which late steps are the crowd's and say nothing, as long as its streams end."""
STEADY_ROWS = 16
"""Rows for each stream that enters or leaves, from which on a period shows the cost of rows. Both ends of a stream cost
the loop 1.6 ms, a row 0.12 (loadtest/LOG.md): the ends are less than a third of the time then. Streams of 3 s have 19
rows for each end; clients that send 0.3 s of audio and leave have 4, and those that are refused have none."""
FLOOR = 1 / 12
"""Least bound under pressure, as a share of `possible`: late steps of a few streams say little of many. On two cores it
is 37 streams, about as many as `Admission` lets in at once."""
AFTER_CROWD = 1 / 2
"""Share of `possible` that the first period without late steps gives back after a crowd: as much as an empty replica
lets in at once."""
IDLE_S = 4.0
"""Time constant with which slowdowns return to 1 while there are too few batches to measure them."""
IDLE_SPEED = 4.0
"""Seconds of calm for which a second without a live step counts: the reserve is given back in 45 s then."""
RESERVE_S = 180.0
"""Time since the last pressure in which the reserve is given back, in proportion."""
MIN_BATCHES = 10  # in a period; the times of fewer are too noisy
MIN_BATCH_S = 1e-6  # guards the division against a coarse clock
FOLLOW = 1 / 4  # weight of the newest period in a mean of periods: about two seconds of memory

LOOP_PRIOR = {1: 0.0004, 128: 0.0160}
"""Seconds of the results' thread by rows, until measured: about 0.12 ms a row."""


@dataclass(slots=True)
class _Period:
    """Sums over one period."""

    since_s: float
    busy_s: float
    thread_rows: int
    batches: int = 0
    rows: int = 0
    step_s: float = 0.0
    undisturbed_s: float = 0.0  # time of the same batches in the warm-up
    live: int = 0  # rows of live streams
    late: int = 0  # of `live`
    waited_s: float = 0.0  # longest wait for other work that a live stream's result needs
    asked: int = 0  # streams that asked to be let in
    ended: int = 0
    requests: int = 0  # of any kind, those that were malformed or refused included

    @property
    def crowd(self) -> bool:
        return max(self.asked, self.ended, self.requests) >= CROWD

    @property
    def steady(self) -> bool:
        return self.rows >= STEADY_ROWS * (max(self.asked, self.requests) + self.ended)


class Capacity:
    """The estimate. `objective_s` bounds the 98th percentile from a step's arrival to its answer."""

    def __init__(
        self,
        *,
        step_s: float,
        objective_s: float,
        max_batch: int,
        loop: Mapping[int, float] = LOOP_PRIOR,
    ) -> None:
        self._step_s = step_s
        self._objective_s = objective_s
        self._max_batch = max_batch
        self._batch, self._slowdown = ServiceTimes(), 1.0
        self._loop, self._loop_slowdown = ServiceTimes(loop), 1.0
        self._period: _Period | None = None
        self._steady = True  # so was the period before: the work that a crowd leaves is done in the next one
        self._pressed = 0  # periods in a row with too many late steps
        self._crowd = False  # in each of those periods
        self._since_crowd = CROWD_TAIL + 1  # periods
        self._bound: float | None = None  # set by pressure
        self._reserve = 0.0  # share of `possible`, once there was pressure without a crowd
        self._calm_s = 0.0  # since the last pressure

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Take the warm-up's service times, seconds by rows."""
        for rows, seconds in step_s.items():
            self._batch.learn(rows, seconds)

    def ran(self, rows: int, step_s: float, live_ages_s: Sequence[float], steps: int = 1) -> None:
        """Learn from a batch: its time in the model, and the ages of its live steps when they were answered.

        The time of a chunk, of two `steps` of each stream or more, says nothing of the times of single ones.
        """
        if not self._batch.known and steps == 1:
            self._batch.learn(rows, step_s)
        if self._period is not None:
            period, limit_s = self._period, WARNING * self._objective_s
            period.batches += 1
            period.rows += rows
            if steps == 1:
                period.step_s += step_s
                period.undisturbed_s += self._batch.extrapolate(rows)
            period.live += len(live_ages_s)
            period.late += sum([age_s > limit_s for age_s in live_ages_s])

    def waited(self, seconds: float) -> None:
        """Note how long a live stream's result waited for work of other threads, beside its steps."""
        if self._period is not None:
            self._period.waited_s = max(self._period.waited_s, seconds)

    def asked(self, streams: int) -> None:
        """Note that streams asked to be let in, whether they were or not."""
        if self._period is not None:
            self._period.asked += streams

    def ended(self, streams: int) -> None:
        """Note that streams ended."""
        if self._period is not None:
            self._period.ended += streams

    def requested(self, requests: int) -> None:
        """Note that clients connected or sent requests, whatever came of them."""
        if self._period is not None:
            self._period.requests += requests

    def due(self, now: float) -> bool:
        """Whether a period is over, so that `look` has something to do."""
        return self._period is None or now - self._period.since_s >= PERIOD_S

    def look(self, now: float, busy_s: float, streams: int, thread_rows: int | None = None) -> bool:
        """Close the period if it is over. Returns: True if it was, and the estimate may have changed.

        `busy_s` is the time so far that the results' thread computed or waited for a core, and `thread_rows` the rows
        that it took in that time, of all models; None where there is no other. `streams` are open: those of other
        models count as many of this one as would load the machine alike.
        """
        period = self._period
        if period is None:
            self._period = _Period(now, busy_s, thread_rows or 0)
            return True
        if not self.due(now):
            return False
        self._period = _Period(now, busy_s, thread_rows or 0)
        elapsed_s = now - period.since_s
        if period.batches >= MIN_BATCHES and period.undisturbed_s > 0:
            loop_s = period.batches * self._loop.extrapolate(period.rows / period.batches)
            share = 1.0 if thread_rows is None else period.rows / (thread_rows - period.thread_rows)
            found = period.step_s / period.undisturbed_s
            loop_found = share * (busy_s - period.busy_s) / loop_s
            steady = period.steady and self._steady
            self._slowdown = _followed(self._slowdown, found, steady=steady)
            self._loop_slowdown = _followed(self._loop_slowdown, loop_found, steady=steady)
        elif period.batches < MIN_BATCHES:
            self._slowdown = _forgotten(self._slowdown, elapsed_s)
            self._loop_slowdown = _forgotten(self._loop_slowdown, elapsed_s)
        self._steady = period.steady
        self._press(period, streams, elapsed_s)
        return True

    def streams(self) -> int:
        """Live streams within the objective; 1 at least."""
        bound = self.possible()
        if self._bound is not None:
            bound = min(bound, self._bound)
        return max(1, int(bound))

    def possible(self) -> float:
        """The bound by service times alone, as a fraction of a stream count."""
        for rows in range(self._max_batch, 0, -1):  # the larger the batch, the higher the rate, and the latency
            batch_s = self._slowdown * self._batch.extrapolate(rows)
            loop_s = self._loop_slowdown * self._loop.extrapolate(rows)
            if 2 * batch_s + loop_s <= self._objective_s:
                return HEADROOM * rows * self._step_s / max(batch_s, loop_s, MIN_BATCH_S)
        return 0.0

    @property
    def slowdown(self) -> float:
        """Time of batches now, as a multiple of the warm-up's."""
        return self._slowdown

    def reserved(self) -> int:
        """Live streams that service times allow and that pressure, now or in the last minutes, keeps out."""
        return max(0, int(self.possible()) - self.streams())

    def _press(self, period: _Period, streams: int, elapsed_s: float) -> None:
        self._since_crowd = 0 if period.crowd else self._since_crowd + 1
        tail = period.ended > 0 and 0 < self._since_crowd <= CROWD_TAIL
        late = not tail and (period.late > LATE_SHARE * period.live or period.waited_s > LONG_WAIT_S)
        self._crowd = late and period.crowd and (self._crowd or not self._pressed)
        self._pressed = self._pressed + 1 if late else 0
        possible = self.possible()
        if self._pressed >= PRESSED_PERIODS:
            least = FLOOR * possible
            self._bound = max(least, min(RELIEF * streams, self._bound or streams))
            self._calm_s = 0.0
            self._reserve = self._reserve if self._crowd else RESERVE
        elif self._bound is not None:
            calm_s = elapsed_s if period.live else IDLE_SPEED * elapsed_s
            self._bound = _lifted(self._bound, possible, calm_s, self._reserve)
            if not late and not self._reserve:
                self._bound = max(self._bound, AFTER_CROWD * possible)
            self._calm_s += calm_s
            if self._calm_s >= RESERVE_S:
                self._bound, self._reserve = None, 0.0


def _followed(slowdown: float, found: float, *, steady: bool) -> float:
    """Return the mean with the newest period in it; one that is not `steady` can only lower it."""
    return slowdown + FOLLOW * (found - slowdown) if steady or found < slowdown else slowdown


def _forgotten(slowdown: float, elapsed_s: float) -> float:
    """Return a slowdown above 1 as it comes down while nothing is measured."""
    return 1.0 + (slowdown - 1.0) * math.exp(-elapsed_s / IDLE_S) if slowdown > 1.0 else slowdown


def _lifted(bound: float, possible: float, elapsed_s: float, reserve: float) -> float:
    """Return the bound as it rises in `elapsed_s` without pressure: quickly up to the reserve, slowly from there."""
    quick = max(1.0, GROWTH * possible)
    quick_s = min(elapsed_s, max(0.0, (1 - reserve) * possible - bound) / quick)
    return bound + quick * quick_s + reserve * possible / RESERVE_S * (elapsed_s - quick_s)
