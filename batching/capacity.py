"""Running estimate of the number of live streams that this replica can carry within its latency objective.

Pure: batches and times are arguments. The estimate is the lowest of three bounds:

- The engine. Under eager dispatch a batch holds the steps that arrived during the previous one. So batches of `b` rows
  that take T(b) seconds carry b * step / T(b) streams, and a step waits for one batch and runs in the next. T includes
  the model and the engine thread's reading, scheduling and writing. Where streams are forked, the silent steps of the
  forks are rows too, so the bound is divided by the ratio of all rows to the streams' rows.
- The event loop, which receives results and sends steps: the same formula, where T is the time for which its thread
  computes or waits for a core per batch of `b` rows. With several models, this time is divided among them by rows.
- Pressure. More than 2 % late steps, or other work that waits for long, mean too many streams, whatever the other
  bounds are. A reserve is then held back for minutes, because the cause (such as another process) may return, and
  admitted streams cannot be rejected later. No reserve is held back if a crowd (many streams or requests) arrived or
  left in that period: the crowd caused the late steps, and it costs time whether it is admitted or not.

The warm-up measures how model time grows with batch size. While serving, only the slowdown relative to those times is
tracked: the model thread and the event loop share cores, caches and the interpreter lock.

If several processes share an engine, each measures its own event loop and late steps, and all measure the engine's
batches. `bounds` returns the three bounds separately, so that those of all processes can be combined.

Only periods of steady streams can lower the estimate by service times. If many clients connect, or many streams open
and close, relative to the number of rows, the time that both threads spend on them would be attributed to the rows. On
an idle replica the estimate returns to that of the warm-up within a minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batching.policy.service_times import ServiceTimes

PERIOD_S = 0.5
HEADROOM = 0.7
"""Capacity as a share of the possible load: queues grow without bound near 1, and opening and closing streams and
rejecting clients take time too. Source: the overloads in loadtest/LOG.md."""
LATE_SHARE = 0.02  # the objective is a 98th percentile
WARNING = 0.75
"""Share of the objective above which a step counts as late here: its answer reaches the socket later."""
LONG_WAIT_S = 0.5
"""Wait for other work that counts as pressure: the work takes milliseconds, so a long wait means a growing queue."""
PRESSED_PERIODS = 2  # in a row: a single one may be a burst of opening streams, or a stall of the machine
RELIEF = 0.95
"""Bound under pressure as a share of the open streams, so that streams that end are not replaced."""
GROWTH = 0.05
"""Rise per second of a bound set by pressure, after the pressure, as a share of `possible`, up to the reserve."""
RESERVE = 2 / 3
"""Share of `possible` that may be held back after pressure: what a machine three times as slow cannot carry. Another
process with half of each core, plus the load generator, slowed batches two to three times (loadtest/LOG.md). A bound
that was higher after the pressure stays there."""
CROWD = 32
"""Number of admission requests, ended streams, or other requests in a period from which late steps are attributed to
them. A full server with streams of 15 s on two cores has half as many, the overload in loadtest/LOG.md 130 at first and
36 later. With short streams or many cores ordinary arrivals reach this number, and pressure leaves no reserve."""
CROWD_TAIL = 4
"""Periods after a crowd in which late steps are still attributed to it, as long as streams of it end."""
STEADY_ROWS = 16
"""Least rows per opened or closed stream for which a period measures the cost of rows. Opening and closing a stream
costs the event loop 1.6 ms, a row 0.12 ms (loadtest/LOG.md), so it is less than a third of the time then. Streams of
3 s have 19 rows per opening or closing, clients that send 0.3 s of audio and leave 4, rejected clients none."""
FLOOR = 1 / 12
"""Lowest bound under pressure as a share of `possible`: late steps of a few streams say little about many. On two cores
it is 37 streams, about as many as `Admission` admits at once."""
AFTER_CROWD = 1 / 2
"""Share of `possible` that is available again after the first period without late steps that follows a crowd: as much
as an empty replica admits at once."""
IDLE_S = 4.0
"""Time constant of the return of slowdowns to 1 while there are too few batches to measure them."""
IDLE_SPEED = 4.0
"""Seconds without pressure for which one second without live steps counts: an idle replica is at 0 reserve in 45 s."""
RESERVE_S = 180.0
"""Seconds after the last pressure in which the reserve is released linearly."""
MIN_BATCHES = 10  # in a period; the times of fewer are too noisy
MIN_BATCH_S = 1e-6  # avoids a division by zero with a coarse clock
FOLLOW = 1 / 4  # weight of the newest period in a mean over periods: a memory of about two seconds

LOOP_PRIOR = {1: 0.0004, 128: 0.0160}
"""Seconds of the event loop by rows until measured: about 0.12 ms per row."""
OUTSIDE_PRIOR = {1: 0.00006, 128: 0.0015}
"""Seconds of an engine's thread outside the model by rows, until measured. Source: docs/front-ends.md."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers of live streams within the objective, not rounded: one for each of the three bounds.

    `model` counts the streams of all processes of an engine, `loop` and `pressure` those of one. `pressure` is None
    without recent pressure.
    """

    model: float
    loop: float
    pressure: float | None


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
    outside_s: float = 0.0  # of all batches, and what was expected for them
    outside_before_s: float = 0.0
    live: int = 0  # rows of live streams, without those of their forks
    forked: int = 0  # rows of forks
    late: int = 0  # of `live`
    waited_s: float = 0.0  # longest wait for other work that a live stream's result needs
    asked: int = 0  # streams that requested admission
    ended: int = 0
    requests: int = 0  # of any kind, including malformed and rejected ones

    @property
    def crowd(self) -> bool:
        return max(self.asked, self.ended, self.requests) >= CROWD

    @property
    def steady(self) -> bool:
        return self.rows >= STEADY_ROWS * (max(self.asked, self.requests) + self.ended)


class Capacity:
    """The estimate. `objective_s`: bound on the 98th percentile of the time from a step's arrival to its answer."""

    def __init__(
        self,
        *,
        step_s: float,
        objective_s: float,
        max_batch: int,
        loop: Mapping[int, float] = LOOP_PRIOR,
        outside: Mapping[int, float] = OUTSIDE_PRIOR,
    ) -> None:
        """`loop`, `outside`: seconds of the event loop, and of the engine outside the model, until measured."""
        self._step_s = step_s
        self._objective_s = objective_s
        self._max_batch = max_batch
        self.processes = 1
        """Processes whose streams share the engine, each with about the same number."""
        self._batch, self._slowdown = ServiceTimes(), 1.0
        self._outside, self._outside_slowdown = ServiceTimes(outside), 1.0
        self._loop, self._loop_slowdown = ServiceTimes(loop), 1.0
        self._rows_each = 1.0  # rows of a live stream in the time of a step: above 1 where streams are forked
        self._period: _Period | None = None
        self._steady = True  # whether the last period was: work left by a crowd is done in the period after it
        self._pressed = 0  # consecutive periods with too many late steps
        self._crowd = False  # whether there was a crowd in each of those periods
        self._since_crowd = CROWD_TAIL + 1  # periods since the last crowd
        self._bound: float | None = None  # set by pressure
        self._reserve = 0.0  # share of `possible` that is held back, after pressure without a crowd
        self._calm_s = 0.0  # seconds since the last pressure

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Store the service times of the warm-up, seconds by rows."""
        for rows, seconds in step_s.items():
            self._batch.learn(rows, seconds)

    def ran(  # noqa: PLR0917 - one call a batch
        self,
        rows: int,
        step_s: float,
        live_ages_s: Sequence[float],
        steps: int = 1,
        rows_in_all: int = 0,
        forked: int = 0,
        outside_s: float = 0.0,
    ) -> None:
        """Add a batch: its time in the model, and the ages of its live steps when they were answered.

        The time of a chunk (`steps` > 1) is not used, because it says nothing about single steps. `rows` are of this
        process; `rows_in_all` of all that share the engine, 0 if there is no other. `forked`: rows of forks of live
        streams, whose ages are left out. `outside_s`: the engine's time for the batch outside the model.
        """
        rows_in_all = rows_in_all or rows
        if not self._batch.known and steps == 1:
            self._batch.learn(rows_in_all, step_s)
        if self._period is not None:
            period, limit_s = self._period, WARNING * self._objective_s
            period.batches += 1
            period.rows += rows
            if steps == 1:
                period.step_s += step_s
                period.undisturbed_s += self._batch.extrapolate(rows_in_all)
            period.outside_s += outside_s
            period.outside_before_s += self._outside.extrapolate(rows_in_all)
            period.live += len(live_ages_s)
            period.forked += forked
            period.late += sum([age_s > limit_s for age_s in live_ages_s])

    def waited(self, seconds: float) -> None:
        """Add a wait of a live stream's result for work of other threads outside of its steps."""
        if self._period is not None:
            self._period.waited_s = max(self._period.waited_s, seconds)

    def asked(self, streams: int) -> None:
        """Count streams that requested admission, whether they were admitted or not."""
        if self._period is not None:
            self._period.asked += streams

    def ended(self, streams: int) -> None:
        """Count ended streams."""
        if self._period is not None:
            self._period.ended += streams

    def requested(self, requests: int) -> None:
        """Count connections and requests of clients, including rejected ones."""
        if self._period is not None:
            self._period.requests += requests

    def due(self, now: float) -> bool:
        """Whether the period is over, so that `look` has something to do."""
        return self._period is None or now - self._period.since_s >= PERIOD_S

    def look(self, now: float, busy_s: float, streams: int, thread_rows: int | None = None) -> bool:
        """End the period if it is over. Returns: whether it was; the estimate may have changed then.

        `busy_s`: total time so far that the event loop's thread computed or waited for a core. `thread_rows`: rows of
        all models that it received in that time; None with a single model. `streams`: number of open streams; a stream
        of another model counts as the number of streams of this one with the same load.
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
            outside_found = period.outside_s / period.outside_before_s
            self._outside_slowdown = _followed(self._outside_slowdown, outside_found, steady=steady)
            self._loop_slowdown = _followed(self._loop_slowdown, loop_found, steady=steady)
        elif period.batches < MIN_BATCHES:
            self._slowdown = _forgotten(self._slowdown, elapsed_s)
            self._outside_slowdown = _forgotten(self._outside_slowdown, elapsed_s)
            self._loop_slowdown = _forgotten(self._loop_slowdown, elapsed_s)
        if period.live:
            self._rows_each += FOLLOW * (1.0 + period.forked / period.live - self._rows_each)
        self._steady = period.steady
        self._press(period, streams, elapsed_s)
        return True

    def streams(self) -> int:
        """Number of live streams of this process within the objective, at least 1."""
        bound = self.possible()
        if self._bound is not None:
            bound = min(bound, self._bound)
        return max(1, int(bound))

    def possible(self) -> float:
        """Bound of this process's streams by service times alone, not rounded."""
        model, loop = self._by_service_times()
        return min(model / self.processes, loop)

    def bounds(self) -> Bounds:
        """Return each bound by itself, to be added to those of other processes."""
        model, loop = self._by_service_times()
        return Bounds(model, loop, self._bound)

    def _by_service_times(self) -> tuple[float, float]:
        """Bounds by the times of the model and of this process's event loop, numbers of streams."""
        for rows in range(self._max_batch, 0, -1):  # larger batches have a higher rate and a higher latency
            own = max(1.0, rows / self.processes)
            batch_s = self._slowdown * self._batch.extrapolate(rows)
            batch_s += self._outside_slowdown * self._outside.extrapolate(rows)
            loop_s = self._loop_slowdown * self._loop.extrapolate(own)
            if 2 * batch_s + loop_s <= self._objective_s:
                share = HEADROOM * self._step_s / self._rows_each
                return share * rows / max(batch_s, MIN_BATCH_S), share * own / max(loop_s, MIN_BATCH_S)
        return 0.0, 0.0

    @property
    def known(self) -> bool:
        """Whether there is any service time: after the warm-up, or the first batch."""
        return self._batch.known

    @property
    def slowdown(self) -> float:
        """Current time of batches as a multiple of their time in the warm-up."""
        return self._slowdown

    def reserved(self) -> int:
        """Number of streams that service times allow and that current or recent pressure excludes."""
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
    """Return the mean updated with the newest period; a period that is not `steady` can only lower it."""
    return slowdown + FOLLOW * (found - slowdown) if steady or found < slowdown else slowdown


def _forgotten(slowdown: float, elapsed_s: float) -> float:
    """Return a slowdown above 1 after it decayed for `elapsed_s` without measurements."""
    return 1.0 + (slowdown - 1.0) * math.exp(-elapsed_s / IDLE_S) if slowdown > 1.0 else slowdown


def _lifted(bound: float, possible: float, elapsed_s: float, reserve: float) -> float:
    """Return the bound after `elapsed_s` without pressure: it rises fast up to the reserve, then slowly."""
    quick = max(1.0, GROWTH * possible)
    quick_s = min(elapsed_s, max(0.0, (1 - reserve) * possible - bound) / quick)
    return bound + quick * quick_s + reserve * possible / RESERVE_S * (elapsed_s - quick_s)
