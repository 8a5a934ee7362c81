"""Slots of one model: each live stream takes one and gives it back, up to the model's limit.

A slot is held until every engine has closed its stream, because only then can another stream use it. A live stream that
rests lends its slot: it counts again as soon as it steps, also above the limit, because no open stream is closed.
Background streams have slots of their own: their steps only fill batches where live ones are hardly slowed down.

The limit of a model is the number of streams that the machine can carry if all use that model. So a stream costs
1 / limit of the machine, and one is admitted if the costs of all open streams leave enough for it. Models slow each
other down, so their streams are late sooner, and a sum of costs near 1 is a conservative limit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from batching.capacity import PERIOD_S, Capacity, LatencyObjective, PeriodSteps
from batching.events import BatchDone
from server.errors import ServerFull

RETURN_SHARE = 0.95  # once full, a replica admits again below this share of the limit, so that it does not flap
SPEECH = "speech"  # the recognizer's engine
FREE_AT_ONCE = 32
AT_ONCE_SHARE = 1 / 4
"""Streams that are admitted in a period: this number, or this share of those that can enter if it is more, so that late
steps show first whether they are too many; only this number while steps are late. Otherwise a thousand clients that
reconnect at once would all be admitted."""
ROUNDING = 1e-9  # rounding error of sums of costs, so that a whole equivalent of streams is not rounded up
TAKEN = "all streams are taken"
FOLLOWING = "this server carries as many streams as it can"


class StreamLease:
    """Slots of one session, given back one by one as the engines close their streams."""

    def __init__(self, streams: int, give_back: Callable[[int], None]) -> None:
        """Hold `streams` slots; `give_back` receives the number of those that are free again."""
        self._give_back = give_back
        self._open = {SPEECH: streams}  # by engine

    @property
    def slots(self) -> int:
        """Slots that are held."""
        return max(self._open.values())

    def opened(self, engine: str) -> None:
        """Record that each stream is also open in the engine of an auxiliary model."""
        self._open[engine] = self._open[SPEECH]

    def closed(self, engine: str = SPEECH) -> None:
        """Note that an engine has closed one stream."""
        self._change({**self._open, engine: self._open[engine] - 1})

    def cancel(self) -> None:
        """Give all slots back, because no engine has a stream of this session."""
        self._change({SPEECH: 0})

    def _change(self, to: dict[str, int]) -> None:
        before = self.slots
        self._open = to
        if before != self.slots:
            self._give_back(before - self.slots)


class HeldSlots:
    """Slots that this process's streams of a model hold, and the sums of its batches in the current period."""

    def __init__(
        self, objective: LatencyObjective, clock: Callable[[], float], on_change: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_change` receives the number of slots in use."""
        self.live = self.background = 0
        self.resting = 0  # live streams whose steps are not computed
        self._recordings = 0  # that are received or decoded
        self._clock = clock
        self._on_change = on_change
        self._late_s = objective.late_s
        self._steps = PeriodSteps()
        self._ends_s = -math.inf  # the period
        self._changed = asyncio.Event()  # slots that are held, or the limit

    @property
    def slots_used(self) -> int:
        """Slots of streams, lent ones among them, at least one for each recording that is received or decoded."""
        return self.live + max(self.background, self._recordings)

    @contextmanager
    def for_recording(self) -> Iterator[None]:
        """Keep the model for a recording, which takes slots once it is decoded."""
        self._recordings += 1
        try:
            yield
        finally:
            self._recordings -= 1
            self._count(0, background=True)

    @property
    def stepping(self) -> int:
        """Live streams that do not rest."""
        return max(0, self.live - self.resting)

    def rest(self, streams: int) -> None:
        """Count live streams that began to rest, or with a negative number that ended it."""
        self.resting += streams
        self._count(0, background=False)

    async def empty(self) -> None:
        """Wait until no slot is held."""
        while self.slots_used:
            await self._change()

    def clear(self) -> None:
        """Drop all leases of this process after its engines have stopped; they give nothing back afterwards."""
        self.live = self.background = self.resting = 0
        self._count(0, background=False)

    def ran(self, batch: BatchDone, ages_s: Sequence[float], now: float) -> None:
        """Count a batch that was answered now; `ages_s` of its live steps, except those of forks."""
        steps, late_s = self._steps, self._late_s
        steps.live += len(ages_s)
        steps.late += sum([age_s > late_s for age_s in ages_s])
        if batch.steps == 1:
            steps.batches += 1
            steps.rows += batch.rows_in_all or len(batch.streams)
            steps.step_s += batch.step_s
        if now >= self._ends_s:
            self.look()

    def waited(self, seconds: float) -> None:
        """Count the wait of a live stream's result for work of other threads."""
        self._steps.waited_s = max(self._steps.waited_s, seconds)

    def look(self) -> None:
        """End the period if it is over."""
        now = self._clock()
        if now >= self._ends_s:
            steps, self._steps, self._ends_s = self._steps, PeriodSteps(), now + PERIOD_S
            self._end_period(steps)

    def _end_period(self, steps: PeriodSteps) -> None:
        raise NotImplementedError

    def _count(self, streams: int, *, background: bool) -> None:
        if background:
            self.background += streams
        else:
            self.live += streams
        self._on_change(self.stepping + self.background)
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """The operator's limits. `follow`: live streams are limited by the capacity in addition to the slots.

    `connected`: live streams with those that rest.
    """

    slots: int
    background_slots: int
    follow: bool
    connected: int


class Slots(HeldSlots):
    """Slots that this process decides about."""

    def __init__(
        self,
        capacity: Capacity,
        limits: SlotLimits,
        clock: Callable[[], float],
        on_change: Callable[[int], None] = lambda _: None,
        *,
        models: Collection[Slots] = (),
    ) -> None:
        """`models`: the slots of all models of the server."""
        super().__init__(capacity.objective, clock, on_change)
        self.capacity = capacity
        self._limits = limits
        self._models = models
        self._full = False
        self._admitted, self._may_enter = 0, FREE_AT_ONCE
        self._since_s = -math.inf

    @property
    def estimate(self) -> int:
        """Number of live streams of this model that the server can carry; 0 before the warm-up."""
        return self.capacity.streams()

    @property
    def reserved(self) -> int:
        """Number of streams that the warm-up allows and that late steps exclude."""
        return self.capacity.reserved()

    @property
    def slowdown(self) -> float:
        """Current time of batches as a multiple of their time in the warm-up."""
        return self.capacity.slowdown

    @property
    def limit(self) -> int:
        """Number of live streams that may step now."""
        return min(self._limits.slots, self.estimate) if self._limits.follow else self._limits.slots

    @property
    def load(self) -> int:
        """Stepping live streams, plus the equivalent, in streams of this model, of those of the other models."""
        others = [other for other in self._models if other is not self and other.stepping and other.limit]
        costs = [other.stepping / other.limit for other in others]
        return self.stepping + math.ceil(sum(costs) * self.limit - ROUNDING)

    def warmed_up(self, batch_s: Mapping[int, float]) -> None:
        """Take the seconds by rows of the warm-up of this process's engine."""
        self.measured([(batch_s, 1)])

    def measured(self, engines: Sequence[tuple[Mapping[int, float], int]]) -> None:
        """Take the seconds by rows of each engine's warm-up, with the number of processes that share the engine."""
        self.capacity.warmed_up(engines)
        self._changed.set()

    def report(self, steps: PeriodSteps, resting: int) -> None:
        """Take the steps of another process's period, and the number of streams of all processes that rest."""
        self._steps.add(steps)
        self.rest(resting - self.resting)
        self.look()

    def _end_period(self, steps: PeriodSteps) -> None:
        self.capacity.end_period(self._clock(), steps, self.load)
        self._changed.set()

    # Taking slots

    def refuse_if_full(self) -> None:
        """Refuse a request before any work on it. Raises: ServerFull."""
        if self._is_full():
            raise ServerFull(FOLLOWING if self._limits.follow else TAKEN)

    async def take(self, streams: int, *, background: bool = False, within_s: float | None = None) -> StreamLease:
        """Hold slots for the streams of one session.

        `within_s`: background streams wait for this time until live streams leave slots for them; None: no wait.
        Raises: ServerFull.
        """
        self.look()
        if within_s is None:
            return self.take_now(streams, background=background)
        try:
            async with asyncio.timeout(within_s):
                while self._is_full() or self._lacks_slots(streams):
                    await self._change()
        except TimeoutError:
            raise ServerFull("live streams take all that this server carries: send the recording later") from None
        return self._hold(streams, background=True)

    def take_now(self, streams: int, *, background: bool) -> StreamLease:
        """Do as `take`, without waiting."""
        if not background:
            self._admit(streams, self._clock())
        elif self._lacks_slots(streams):
            raise ServerFull("all recordings that this server takes at a time are being recognized")
        return self._hold(streams, background=background)

    def _admit(self, streams: int, now: float) -> None:
        """Count live streams that enter now. Raises: ServerFull."""
        used, limit = self.load, self.limit
        if self.live + streams > self._limits.connected:
            raise ServerFull(TAKEN)
        if not self._limits.follow:
            if used + streams > limit:
                raise ServerFull(TAKEN)
            return
        free = int(limit * RETURN_SHARE if self._full else limit) - used
        self._full = free < streams and used > 0  # a stream alone is always served
        if self._full:
            raise ServerFull(FOLLOWING)
        if now - self._since_s >= PERIOD_S:
            self._since_s, self._admitted, self._may_enter = now, 0, max(FREE_AT_ONCE, int(free * AT_ONCE_SHARE))
        late = self._steps.too_late or self.capacity.late
        if self._admitted + streams > (FREE_AT_ONCE if late else self._may_enter):
            raise ServerFull("too many streams come at once")
        self._admitted += streams

    def _hold(self, streams: int, *, background: bool) -> StreamLease:
        self._count(streams, background=background)
        return StreamLease(streams, lambda slots: self._count(-slots, background=background))

    def _is_full(self) -> bool:
        """Whether no live stream can enter."""
        return 0 < self.load >= self.limit or self.live >= self._limits.connected

    def _lacks_slots(self, streams: int) -> bool:
        """Whether too few of the slots for background streams are free."""
        return self.background + streams > self._limits.background_slots
