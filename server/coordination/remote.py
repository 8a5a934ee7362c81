"""Coordinator of a front end: another process decides over a `Channel`, and gets the sums of the steps here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from batching.capacity import LatencyObjective, PeriodSteps
from server.coordination.expected_calls import ExpectedCall
from server.coordination.limits import LEAST_PER_S, MAX_BUCKETS, RetryAfter
from server.coordination.local import objective_of
from server.coordination.messages import (
    AskTicket,
    Channel,
    CloseSlots,
    Enter,
    ExpectCall,
    GiveBack,
    Leave,
    Numbers,
    OpenSlots,
    RefuseHint,
    ReportSteps,
    StreamsEnded,
    TakeCall,
    TakeSlots,
    UseTicket,
)
from server.coordination.slots import HeldSlots, StreamLease
from server.errors import Refused, ServerFull, TooManyOpenings
from server.settings import Settings

UNKNOWN = Numbers(0, 0, 1.0, 0.0, 0.0, 1, None)  # before the first report was answered
TOO_FAST_S = 1 / LEAST_PER_S
"""Seconds after a refusal for which an address is refused without asking: after that long it may open a stream again at
the lowest rate of `auto`."""


class RemoteLease:
    """One call's share of its key's quota, until it is released."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._released = False

    def release(self) -> None:
        """Stop counting the call."""
        assert not self._released, "a lease can be released only once"
        self._released = True
        self._channel.tell(Leave(self._number))


class RemoteCoordinator:
    """The methods of `LocalCoordinator`, in a front end. Used on the event loop alone."""

    def __init__(self, settings: Settings, channel: Channel, clock: Callable[[], float]) -> None:
        self._settings = settings
        self.channel = channel
        self._clock = clock
        self.leases = itertools.count(1)  # lease numbers, for calls and for streams
        self._retry = RetryAfter()
        self._full: str | None = None
        self._too_fast: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by owner: text, expiry time
        self.limit = 0.0
        self.estimate = 0.0

    def take(self, hint: RefuseHint) -> None:
        """Store whether the server is full."""
        self._full = hint.full

    # Calls

    async def enter(self, owner: str, limit: int | None, openings: Sequence[str]) -> RemoteLease:
        """Count a call of this key. Raises: as `LocalCoordinator.enter`; ServerNotReady if that process has ended."""
        message = Enter(next(self.leases), tuple(openings), owner, limit)
        try:
            await self.channel.request(message)
        except TooManyOpenings as error:
            self._note_too_fast(error)
            raise
        except Refused:
            raise
        except BaseException:  # cancelled: no caller holds the lease
            self.channel.tell(Leave(message.lease))
            raise
        return RemoteLease(self.channel, message.lease)

    def refuse_if_full(self) -> None:
        """Refuse a call if the server was full by the last hint. Raises: ServerFull."""
        if self._full is not None:
            raise ServerFull(self._full)

    def refuse_if_too_fast(self, opening: str) -> None:
        """Refuse a call of an address that was refused a moment ago. Raises: TooManyOpenings."""
        text, until_s = self._too_fast.get(opening, ("", 0.0))
        if text and self._clock() < until_s:
            raise TooManyOpenings(text, opening)

    def _note_too_fast(self, error: TooManyOpenings) -> None:
        self._too_fast[error.owner] = str(error), self._clock() + TOO_FAST_S
        self._too_fast.move_to_end(error.owner)
        if len(self._too_fast) > MAX_BUCKETS:
            self._too_fast.popitem(last=False)

    def retry_after_s(self, shortest_s: int) -> int:
        """Return the whole seconds after which a refused client should come again."""
        return self._retry.seconds(shortest_s, self._clock())

    # Tickets

    async def ticket_used(self, ticket: bytes) -> bool:
        """Whether a stream of any process has continued from the ticket. Raises: ServerNotReady."""
        return bool(await self.channel.request(AskTicket(ticket)))

    def use_ticket(self, ticket: bytes, issued_s: float) -> None:
        """Note that a stream continues from this ticket."""
        self.channel.tell(UseTicket(ticket, issued_s))

    # Expected calls

    async def expect_call(self, call: ExpectedCall, ttl_s: float) -> None:
        """Expect a call at any process. Raises: NotAllowed, TooManyStreams, ServerFull, ServerNotReady."""
        await self.channel.request(ExpectCall(call, ttl_s))

    async def take_call(self, uuid: str, key_id: str | None = None) -> ExpectedCall | None:
        """Return a call's options, once; `key_id`: only if they are of this key. Raises: ServerNotReady."""
        answer = await self.channel.request(TakeCall(uuid, key_id))
        return None if answer is None else msgspec.convert(answer, ExpectedCall)

    # Models

    def open_slots(self, model: str, step_s: float, on_change: Callable[[int], None]) -> RemoteSlots:
        """Return the slots of a model, about which the other process decides."""
        return RemoteSlots(model, self, objective_of(self._settings, step_s), self._clock, on_change)

    def close_slots(self, model: str) -> None:
        """Stop counting a model that is not served any more."""
        self.channel.tell(CloseSlots(model))

    def take_numbers(self, numbers: Numbers) -> None:
        """Store the estimates that answer a report."""
        self.limit, self.estimate = numbers.limit, numbers.capacity
        self._full = numbers.full
        self._retry.processes = numbers.processes


class RemoteSlots(HeldSlots):
    """Counts the streams and steps of this process; `slots_used` is for this process, `estimate` for the server."""

    def __init__(
        self,
        model: str,
        coordinator: RemoteCoordinator,
        objective: LatencyObjective,
        clock: Callable[[], float],
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(objective, clock, on_change)
        self._model = model
        self._step_s = objective.step_s
        self._coordinator, self._channel = coordinator, coordinator.channel
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
        self._channel.tell(OpenSlots(self._model, self._step_s, dict(batch_s)))
        self._end_period(PeriodSteps())

    async def take(self, streams: int, *, background: bool = False, within_s: float | None = None) -> StreamLease:
        """Hold slots for the streams of one session, as `Slots.take`. Raises: ServerFull, ServerNotReady."""
        channel, lease = self._channel, next(self._coordinator.leases)
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
        self._channel.tell(StreamsEnded(self._model))

    def _end_period(self, steps: PeriodSteps) -> None:
        """Report the steps, unless the last report is not answered yet: then with those of the next period."""
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._report(steps))
        else:
            self._steps.add(steps)

    async def _report(self, steps: PeriodSteps) -> None:
        with contextlib.suppress(Refused):  # the other process has ended, or the model is not warm yet
            answer = await self._channel.request(ReportSteps(self._model, steps, self.resting))
            self._numbers = msgspec.convert(answer, Numbers)
            self._coordinator.take_numbers(self._numbers)
