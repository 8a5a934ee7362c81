"""Coordinator of a front end: sends requests and counts of steps to another process over a `Channel`."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

from server.coordination.local import objective_of
from server.coordination.messages import (
    AskTicket,
    Channel,
    CloseSlots,
    Enter,
    Leave,
    Numbers,
    RefuseHint,
    TicketState,
    UseTicket,
)
from server.coordination.opening_rate import LEAST_PER_S, MAX_BUCKETS
from server.coordination.remote_slots import Link, RemoteSlots
from server.coordination.retry_after import RetryAfter
from server.errors import Refused, ServerFull, TooManyOpenings
from server.settings import Settings

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
    """Implements `Coordinator` in a front end. Used on the event loop alone."""

    def __init__(self, settings: Settings, channel: Channel, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._channel = channel
        self._clock = clock
        self._leases = itertools.count(1)  # lease numbers, for calls and for streams
        self._link = Link(channel, self._leases, self._take_numbers)
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
        """Count a call of this key. Raises: TooManyOpenings, TooManyStreams, ServerFull, ServerNotReady."""
        number = next(self._leases)
        await self._enter(Enter(number, tuple(openings), owner, limit))
        return RemoteLease(self._channel, number)

    async def enter_without_key(self, opening: str) -> None:
        """Count an opening of this address. Raises: TooManyOpenings, ServerFull, ServerNotReady."""
        await self._enter(Enter(next(self._leases), (opening,), None, None))

    async def _enter(self, message: Enter) -> None:
        try:
            await self._channel.request(message)
        except TooManyOpenings as error:
            self._note_too_fast(error)
            raise
        except Refused:
            raise
        except BaseException:  # cancelled: no caller holds the lease
            self._channel.tell(Leave(message.lease))
            raise

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
        answer = await self._channel.request(AskTicket(ticket))
        assert isinstance(answer, TicketState), "the answer to AskTicket"
        return answer.used

    def use_ticket(self, ticket: bytes, issued_s: float) -> None:
        """Note that a stream continues from this ticket."""
        self._channel.tell(UseTicket(ticket, issued_s))

    # Models

    def open_slots(self, model: str, step_s: float, on_change: Callable[[int], None]) -> RemoteSlots:
        """Return the slots of a model, about which the other process decides."""
        return RemoteSlots(model, self._link, objective_of(self._settings, step_s), self._clock, on_change)

    def close_slots(self, model: str) -> None:
        """Stop counting a model that is not served any more."""
        self._channel.tell(CloseSlots(model))

    def _take_numbers(self, numbers: Numbers) -> None:
        self.limit, self.estimate = numbers.limit, numbers.capacity
        self._full = numbers.full
        self._retry.processes = numbers.processes
