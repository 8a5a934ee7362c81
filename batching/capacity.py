"""Limit of live streams: measured once in the warm-up, lowered while steps are late, raised slowly afterwards.

Pure: time and counts are arguments. The possible number follows from the warm-up. Under eager dispatch a batch holds
the steps that arrived during the previous one, so batches of `b` rows that take T(b) seconds carry b * step / T(b)
streams, and a step waits for one batch and runs in the next. T is the time of the model, which the warm-up measures,
plus that of the engine's thread for reading, scheduling and writing. The event loop, which receives results and sends
steps, carries as many by the same formula. With several processes each has an event loop of its own.

Other processes may take the cores, whatever the warm-up measured. So each open stream counts as many times as batches
are slower than in the warm-up, and the limit falls below the number of open streams while steps are late. Afterwards it
rises to the possible number within `RISE_S`, but slowly while streams fill it, because late steps show only a second
later that they are too many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batching.policy.service_times import ServiceTimes

PERIOD_S = 0.5
HEADROOM = 0.7
"""Limit as a share of the possible load: queues grow without bound near 1, and opening and closing streams and
rejecting clients take time too. Source: the overloads in loadtest/LOG.md."""
LATE_SHARE = 0.02  # the objective is a 98th percentile
WARNING = 0.75
"""Share of the objective above which a step counts as late here: its answer reaches the socket later."""
LATE_PERIODS = 2  # in a row: a single one may be a burst of opening streams, or a stall of the machine
RELIEF = 0.95
"""Limit while steps are late as a share of the open streams, so that streams that end are not replaced."""
LONG_WAIT_S = 0.5
"""Wait for other work that means too many streams: it takes milliseconds, so a long wait means a growing queue."""
FLOOR = 1 / 12
"""Lowest limit as a share of the possible streams: slow batches and late steps of a few say little about many. On two
cores it is 37 streams, about as many as `Slots` admits at once."""
RISE_S = 25.0  # from nothing to all possible streams
FULL = 0.9
"""Share of the limit above which it rises a quarter as fast: each stream that it lets in then enters at once."""
REMEMBER = 3 / 4  # share of the sums of batches that is left after a period: a memory of about two seconds
SLICE_S = 0.005  # added to both sums: about the delay of a thread that loses its core once

ENGINE_S = 0.00005, 0.0000113
"""Seconds of an engine's thread outside the model, by batch and by row. Source: docs/sizing.md."""
LOOP_S = 0.00028, 0.000123
"""Seconds of the event loop, by batch and by row: beam search, an answer to every step. Source: docs/sizing.md."""


@dataclass(slots=True)
class PeriodSteps:
    """Sums over the batches of a period. `batches`, `rows` and `step_s` leave out chunks, which are no steps."""

    live: int = 0  # steps of live streams
    late: int = 0  # of these
    waited_s: float = 0.0  # longest wait of a live stream's result for work of other threads
    batches: int = 0
    rows: int = 0
    step_s: float = 0.0

    def add(self, other: PeriodSteps) -> None:
        """Add the sums of another process."""
        self.live += other.live
        self.late += other.late
        self.waited_s = max(self.waited_s, other.waited_s)
        self.batches += other.batches
        self.rows += other.rows
        self.step_s += other.step_s

    @property
    def too_late(self) -> bool:
        """Whether there were more streams than could be served in time."""
        return self.late > LATE_SHARE * self.live or self.waited_s > LONG_WAIT_S


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """Bound on the 98th percentile of the time from a step's arrival to its answer. `step_s`: audio of a step."""

    step_s: float
    objective_s: float

    @property
    def late_s(self) -> float:
        """Age above which an answered step counts as late."""
        return WARNING * self.objective_s

    def carried(self, batch_s: Mapping[int, float], processes: int = 1) -> float:
        """Return the live streams that each of the processes that share an engine carries, not rounded.

        `batch_s`: seconds by rows in the engine's warm-up.
        """
        times = ServiceTimes(batch_s)
        for rows in range(max(batch_s), 0, -1):  # larger batches have a higher rate and a higher latency
            own = max(1.0, rows / processes)
            engine_s = times.estimate(rows) + ENGINE_S[0] + ENGINE_S[1] * rows
            loop_s = LOOP_S[0] + LOOP_S[1] * own
            if 2 * engine_s + loop_s <= self.objective_s:
                return HEADROOM * self.step_s * min(rows / processes / engine_s, own / loop_s)
        return 0.0


class Capacity:
    """The limit of live streams of a model, for all processes that serve it."""

    def __init__(self, objective: LatencyObjective) -> None:
        self.objective = objective
        self.possible = 0.0
        """Streams that the warm-up allows, not rounded."""
        self.slowdown = 1.0
        """Current time of batches as a multiple of their time in the warm-up."""
        self._batch_s = ServiceTimes()
        self._spent_s = self._expected_s = 0.0  # of the last batches, and of the same ones in the warm-up
        self._streams = 0
        self._lowered: float | None = None  # the limit after late steps, until it is `possible` again
        self._late_periods = 0
        self._since_s: float | None = None

    def warmed_up(self, engines: Sequence[tuple[Mapping[int, float], int]]) -> None:
        """Take the seconds by rows of each engine's warm-up, with the number of processes that share the engine.

        Streams are distributed evenly among all processes, so the one that carries the fewest is the bound of all.
        """
        carried = [self.objective.carried(batch_s, processes) for batch_s, processes in engines]
        self.possible = min(carried) * sum(processes for _, processes in engines)
        self._batch_s = ServiceTimes(engines[0][0])

    def end_period(self, now: float, steps: PeriodSteps, streams: int) -> None:
        """Take the steps of the period that ends now, and the number of open streams."""
        elapsed_s = 0.0 if self._since_s is None else now - self._since_s
        self._since_s = now
        self._streams, remembered, expected_s = streams, REMEMBER ** (elapsed_s / PERIOD_S), 0.0
        if steps.batches and self._batch_s.known:
            expected_s = steps.batches * self._batch_s.estimate(steps.rows / steps.batches)
        self._spent_s = remembered * self._spent_s + steps.step_s
        self._expected_s = remembered * self._expected_s + expected_s
        self.slowdown = (self._spent_s + SLICE_S) / (self._expected_s + SLICE_S)
        self._late_periods = self._late_periods + 1 if steps.too_late else 0
        if self._late_periods >= LATE_PERIODS:
            lowered = self.possible if self._lowered is None else self._lowered
            self._lowered = max(FLOOR * self.possible, min(RELIEF * streams, lowered))
        elif self._lowered is not None and not self._late_periods:
            speed = 0.25 if streams > FULL * self._limit else 1.0
            self._lowered += speed * self.possible * elapsed_s / RISE_S
            if self._lowered >= self.possible:
                self._lowered = None

    @property
    def late(self) -> bool:
        """Whether too many steps of the last period were late."""
        return self._late_periods > 0

    @property
    def _limit(self) -> float:
        slower = max(0.0, self.slowdown - 1.0) * self._streams
        possible = max(FLOOR * self.possible, self.possible - slower)
        return possible if self._lowered is None else min(self._lowered, possible)

    def streams(self) -> int:
        """Number of live streams that may be open: at least 1, or 0 before the warm-up."""
        return max(1, int(self._limit)) if self._batch_s.known else 0

    def reserved(self) -> int:
        """Number of streams that the warm-up allows and that late steps exclude."""
        return max(0, int(self.possible) - self.streams())
