"""How many live streams this replica can carry within its latency objective: an estimate that follows what it sees.

Pure: told of every batch and of the time, asked for a number. Three bounds, the least of which counts:

- the model: under eager dispatch a batch holds the steps that came during the last one, so batches of `b` rows that
  take T(b) seconds mean b * step / T(b) streams, and a step waits for one batch and rides in the next;
- the thread that takes results and feeds steps, by the time that it computes, or waits for a core to compute on, for a
  batch of `b` rows, in the same way;
- pressure: where more than two in a hundred steps are late already, there are too many streams, whatever the rest says.

How times grow with the size of a batch is known beforehand: the warm-up measures the model at many sizes. What is
followed is by how much everything takes longer than that in a server at work, where the parts take from each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batching.service_times import ServiceTimes

PERIOD_S = 0.5
HEADROOM = 0.7
"""Share of what is possible that is called capacity: queues grow without bound near the whole, and streams that begin
and end, and clients that are refused, need time too. Source: the overloads in loadtest/LOG.md."""
LATE_SHARE = 0.02  # the objective is a 98th percentile
WARNING = 0.75
"""Share of the objective at which a step counts as late: what is late at the socket was late here some time before."""
PRESSED_PERIODS = 2  # in a row: one may be a burst of streams that open, or a stall of the machine
RELIEF = 0.95
"""Under pressure there is room for this share of the streams that are open: those who leave are not replaced."""
GROWTH = 0.05
"""By how much a bound set by pressure rises in a second without any, of what is possible by the times."""
MIN_BATCHES = 10  # in a period, or its times say little
MIN_BATCH_S = 1e-6  # whatever a clock says
FOLLOW = 1 / 4  # weight of the newest period in a mean of periods: about two seconds of memory

LOOP_PRIOR = {1: 0.0004, 128: 0.0160}
"""Seconds of the results' thread for a batch, before it was measured: about 0.12 ms a row."""


@dataclass(slots=True)
class _Period:
    """What happened since the last look."""

    since_s: float
    busy_s: float
    batches: int = 0
    rows: int = 0
    step_s: float = 0.0
    undisturbed_s: float = 0.0  # what the same batches would have taken in the warm-up
    live: int = 0  # of them
    late: int = 0


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
        self._pressed = 0  # periods in a row with too many late steps
        self._bound: float | None = None  # set by pressure

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Begin with seconds by rows, measured before the first stream."""
        for rows, seconds in step_s.items():
            self._batch.learn(rows, seconds)

    def ran(self, rows: int, step_s: float, live_ages_s: Sequence[float]) -> None:
        """Learn from a batch: its time in the model, and how old its live steps were when their answers were there."""
        if not self._batch.known:
            self._batch.learn(rows, step_s)
        if self._period is not None:
            period, limit_s = self._period, WARNING * self._objective_s
            period.batches += 1
            period.rows += rows
            period.step_s += step_s
            period.undisturbed_s += self._batch.extrapolate(rows)
            period.live += len(live_ages_s)
            period.late += sum([age_s > limit_s for age_s in live_ages_s])

    def look(self, now: float, busy_s: float, streams: int) -> bool:
        """Close the period if it is over. Returns: whether it was, so that the estimate may have changed.

        `busy_s` is the time so far that the results' thread computed or waited for a core; `streams` are open.
        """
        period = self._period
        if period is None:
            self._period = _Period(now, busy_s)
            return True
        if now - period.since_s < PERIOD_S:
            return False
        self._period = _Period(now, busy_s)
        if period.batches >= MIN_BATCHES and period.undisturbed_s > 0:
            loop_s = period.batches * self._loop.extrapolate(period.rows / period.batches)
            self._slowdown += FOLLOW * (period.step_s / period.undisturbed_s - self._slowdown)
            self._loop_slowdown += FOLLOW * ((busy_s - period.busy_s) / loop_s - self._loop_slowdown)
        self._press(period, streams, now - period.since_s)
        return True

    def streams(self) -> int:
        """Live streams within the objective; 1 at least."""
        bound = self.possible()
        if self._bound is not None:
            bound = min(bound, self._bound)
        return max(1, int(bound))

    def possible(self) -> float:
        """As `streams`, by the times alone."""
        for rows in range(self._max_batch, 0, -1):  # the larger the batch, the higher the rate, and the latency
            batch_s = self._slowdown * self._batch.extrapolate(rows)
            loop_s = self._loop_slowdown * self._loop.extrapolate(rows)
            if 2 * batch_s + loop_s <= self._objective_s:
                return HEADROOM * rows * self._step_s / max(batch_s, loop_s, MIN_BATCH_S)
        return 0.0

    def _press(self, period: _Period, streams: int, elapsed_s: float) -> None:
        self._pressed = self._pressed + 1 if period.late > LATE_SHARE * period.live else 0
        if self._pressed >= PRESSED_PERIODS:
            self._bound = min(RELIEF * streams, self._bound or streams)
        elif self._bound is not None:
            possible = self.possible()
            self._bound += max(1.0, GROWTH * possible) * elapsed_s
            if self._bound >= possible:
                self._bound = None
