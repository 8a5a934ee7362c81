"""Slots of a front end's streams of one model: another process decides about them and gets the sums of their steps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from batching.capacity import LatencyObjective, PeriodSteps
from server.coordination.messages import (
    Channel,
    GiveBack,
    Numbers,
    OpenSlots,
    ReportSteps,
    StreamsEnded,
    TakeSlots,
)
from server.coordination.slots import HeldSlots, StreamLease
from server.errors import Refused

UNKNOWN = Numbers(0, 0, 1.0, 0.0, 0.0, 1, None)  # before the first report was answered


@dataclass(frozen=True, slots=True)
class Link:
    """What the slots of a front end share. `leases` numbers leases; `on_numbers` receives each report's answer."""

    channel: Channel
    leases: Iterator[int]
    on_numbers: Callable[[Numbers], None]


class RemoteSlots(HeldSlots):
    """Counts the streams and steps of this process; `slots_used` is for this process, `estimate` for the server."""

    def __init__(
        self,
        model: str,
        link: Link,
        objective: LatencyObjective,
        clock: Callable[[], float],
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(objective, clock, on_change)
        self._model = model
        self._step_s = objective.step_s
        self._link = link
        self._numbers = UNKNOWN
        self._reporting: asyncio.Task[None] | None = None

    @property
    def estimate(self) -> int:
        """Number of live streams of this model that the server can carry; 0 before the warm-up."""
        return self._numbers.estimate

    @property
    def reserved(self) -> int:
        """Number of streams that the warm-up allows and that late steps exclude."""
        return self._numbers.reserved

    @property
    def slowdown(self) -> float:
        """Current time of batches as a multiple of their time in the warm-up."""
        return self._numbers.slowdown

    def warmed_up(self, batch_s: Mapping[int, float]) -> None:
        """Take the seconds by rows of the warm-up of this process's engine; the model is served from now on."""
        self._link.channel.tell(OpenSlots(self._model, self._step_s, dict(batch_s)))
        self._end_period(PeriodSteps())

    async def take(self, streams: int, *, background: bool = False, within_s: float | None = None) -> StreamLease:
        """Hold slots for the streams of one session, as `Slots.take`. Raises: ServerFull, ServerNotReady."""
        channel, lease = self._link.channel, next(self._link.leases)
        try:
            await channel.request(TakeSlots(lease, self._model, streams, background, within_s))
        except Refused:
            raise
        except BaseException:  # cancelled: no caller has the lease
            channel.tell(GiveBack(lease, streams))
            raise
        self._count(streams, background=background)

        def give_back(slots: int) -> None:
            self._count(-slots, background=background)
            channel.tell(GiveBack(lease, slots))

        return StreamLease(streams, give_back)

    def clear(self) -> None:
        """Drop all leases of this process after its engines have stopped; they give nothing back afterwards."""
        super().clear()
        self._link.channel.tell(StreamsEnded(self._model))

    def _end_period(self, steps: PeriodSteps) -> None:
        """Report the steps, unless the last report is not answered yet: then with those of the next period."""
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._report(steps))
        else:
            self._steps.add(steps)

    async def _report(self, steps: PeriodSteps) -> None:
        with contextlib.suppress(Refused):  # the other process has ended, or the model is not warm yet
            numbers = await self._link.channel.request(ReportSteps(self._model, steps))
            assert isinstance(numbers, Numbers), "the answer to ReportSteps"
            self._numbers = numbers
            self._link.on_numbers(numbers)
