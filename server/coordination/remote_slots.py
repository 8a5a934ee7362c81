"""Room of a front end for one model: another process admits the streams and receives the measurements."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from batching.capacity import Capacity
from server.coordination.admission import Machine
from server.coordination.measured_room import MeasuredRoom, RoomLimits
from server.coordination.messages import (
    Channel,
    EnterStreams,
    GiveBack,
    Numbers,
    ReportBounds,
    StreamsEnded,
    WaitInBackground,
)
from server.coordination.slots import StreamLease
from server.errors import Refused

UNKNOWN = Numbers(0, 0, 1.0, 0.0, 0.0, 1, None)  # before the first report was answered


@dataclass(frozen=True, slots=True)
class Link:
    """What the rooms of a front end share. `leases` numbers leases; `on_numbers` receives each report's answer."""

    channel: Channel
    leases: Iterator[int]
    on_numbers: Callable[[Numbers], None]


class RemoteRoom(MeasuredRoom):
    """Counts and measures the streams of this process; `slots_used` is for this process, `estimate` for the server."""

    def __init__(
        self,
        model: str,
        link: Link,
        capacity: Capacity,
        machine: Machine,
        limits: RoomLimits,
        *,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] | None = None,
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`machine`: the load of this process, for its measurements."""
        super().__init__(capacity, machine, limits, clock=clock, busy_clock=busy_clock, on_change=on_change)
        self._model = model
        self._link = link
        self._numbers = UNKNOWN
        self._reporting: asyncio.Task[None] | None = None

    @property
    def estimate(self) -> int:
        """Estimated number of live streams of this model that the server can carry; 0 before any measurement."""
        return self._numbers.estimate

    @property
    def reserved(self) -> int:
        """Number of streams that service times allow and that pressure excludes."""
        return self._numbers.reserved

    @property
    def slowdown(self) -> float:
        """Current time of batches as a multiple of their time in the warm-up."""
        return self._numbers.slowdown

    # Entering

    async def enter(self, streams: int, *, background: bool = False) -> StreamLease:
        """Hold slots for the streams of one session. Raises: ServerFull, ServerNotReady."""
        self.look()
        if not background:
            self.asked(streams)
        lease = next(self._link.leases)
        return await self._entered(EnterStreams(lease, self._model, streams, background), background=background)

    async def enter_in_background(self, streams: int, within_s: float) -> StreamLease:
        """Wait until live streams leave room for these in the background. Raises: ServerFull, ServerNotReady."""
        lease = next(self._link.leases)
        return await self._entered(WaitInBackground(lease, self._model, streams, within_s), background=True)

    async def _entered(self, message: EnterStreams | WaitInBackground, *, background: bool) -> StreamLease:
        channel, streams = self._link.channel, message.streams
        try:
            await channel.request(message)
        except Refused:
            raise
        except BaseException:  # cancelled: no caller has the lease
            channel.tell(GiveBack(message.lease, streams))
            raise
        self._count(streams, background=background)

        def give_back(slots: int) -> None:
            self._count(-slots, background=background)
            channel.tell(GiveBack(message.lease, slots))

        return StreamLease(streams, give_back)

    def asked(self, streams: int) -> None:
        """Count streams that requested admission, whether they are admitted or not."""
        self._capacity.asked(streams)

    def clear(self) -> None:
        """Forget all leases of this process, which give nothing back afterwards: the engines have stopped."""
        super().clear()
        self._link.channel.tell(StreamsEnded(self._model))

    # Reports

    def update(self) -> None:
        """Report the bounds, after the warm-up and each period, unless the last report is not answered yet."""
        super().update()
        if self._capacity.known and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.get_running_loop().create_task(self._report())

    async def _report(self) -> None:
        bounds, slowdown = self._capacity.bounds(), self._capacity.slowdown
        message = ReportBounds(self._model, bounds.model, bounds.loop, bounds.pressure, slowdown)
        with contextlib.suppress(Refused):  # the other process has ended, or has not registered the model yet
            numbers = await self._link.channel.request(message)
            assert isinstance(numbers, Numbers), "the answer to ReportBounds"
            self._numbers = numbers
            self._capacity.processes = numbers.processes
            self._link.on_numbers(numbers)
