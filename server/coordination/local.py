"""Coordinator of a single-process server: quotas, rates, slots and used tickets are local objects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from batching.capacity import Capacity, LatencyObjective
from server.coordination.expected_calls import ExpectedCall, ExpectedCalls
from server.coordination.limits import TICKET_TTL_S, Lease, OpeningRate, Quotas, RetryAfter, UsedTickets, automatic
from server.coordination.slots import SlotLimits, Slots
from server.errors import ServerFull
from server.settings import Settings


class LocalCoordinator:
    """Decides about calls and streams; its answers never wait."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """`wall_clock` is seconds since 1970, for tickets of other servers."""
        self.quotas = Quotas()
        self.openings = OpeningRate(self._openings_per_s(settings))
        self.tickets = UsedTickets(TICKET_TTL_S, wall_clock)
        self.calls = ExpectedCalls(clock)
        self._slots: dict[str, Slots] = {}
        self._retry = RetryAfter()
        self._settings = settings
        self._clock = clock

    def _openings_per_s(self, settings: Settings) -> Callable[[], float] | None:
        given = settings.max_openings_per_s
        if given == "off":
            return None
        return automatic(lambda: self.limit) if given == "auto" else lambda: given

    # Calls

    async def enter(self, owner: str, limit: int | None, openings: Sequence[str]) -> Lease:
        """Count a call of this key, without waiting, if there is room for a stream; `limit` None: any number of calls.

        `openings`: the owners whose rate is checked, that is, the caller's address, and the key unless the server is
        open. Raises: TooManyOpenings, TooManyStreams, ServerFull; the call counts against no key then.
        """
        return self.enter_now(owner, limit, openings)

    def enter_now(self, owner: str, limit: int | None, openings: Sequence[str]) -> Lease:
        """Do as `enter`."""
        for opening in openings:
            self.openings.take(opening, self._clock())
        lease = self.quotas.take(owner, limit)
        try:
            self.refuse_if_full()
        except ServerFull:
            lease.release()
            raise
        return lease

    def refuse_if_full(self) -> None:
        """Refuse a call if no model can take a stream now. Raises: ServerFull."""
        warm = [slots for slots in self._slots.values() if slots.estimate]  # a model that is loading has none
        for slots in warm[:-1]:
            with contextlib.suppress(ServerFull):
                slots.refuse_if_full()
                return
        if warm:
            warm[-1].refuse_if_full()

    def refuse_if_too_fast(self, opening: str) -> None:
        """Refuse as `enter` would for this address, without counting an opening. Raises: TooManyOpenings."""
        self.openings.refuse_if_exceeded(opening, self._clock())

    def retry_after_s(self, shortest_s: int) -> int:
        """Return the whole seconds after which a refused client should come again, at least `shortest_s`."""
        return self._retry.seconds(shortest_s, self._clock())

    # Tickets

    async def ticket_used(self, ticket: bytes) -> bool:
        """Whether a stream has continued from the ticket with this id."""
        return ticket in self.tickets

    def use_ticket(self, ticket: bytes, issued_s: float) -> None:
        """Note that a stream continues from this ticket; `issued_s` is seconds since 1970."""
        self.tickets.add(ticket, issued_s)

    # Expected calls

    async def expect_call(self, call: ExpectedCall, ttl_s: float) -> None:
        """Expect a call for `ttl_s`. Raises: NotAllowed, TooManyStreams, ServerFull."""
        self.calls.add(call, ttl_s)

    async def take_call(self, uuid: str, key_id: str | None = None) -> ExpectedCall | None:
        """Return a call's options, once; `key_id`: only if they are of this key."""
        return self.calls.take(uuid, key_id)

    # Models

    @property
    def limit(self) -> float:
        """Channels of live streams that may step at the present mix of models; 0 before there is a model."""
        return self._at_present_mix(lambda slots: slots.limit)

    @property
    def estimate(self) -> float:
        """Estimated number of such channels within the latency objective."""
        return self._at_present_mix(lambda slots: slots.estimate)

    def _at_present_mix(self, number: Callable[[Slots], int]) -> float:
        """Return the sum of streams of all models, from each model's own; without streams that of the first model."""
        open_slots = [slots for slots in self._slots.values() if slots.stepping and number(slots)]
        if len(open_slots) > 1:
            cost = sum(slots.stepping / number(slots) for slots in open_slots)
            return float(int(sum(slots.stepping for slots in open_slots) / cost))
        return float(number(next(iter(open_slots or self._slots.values())))) if self._slots else 0.0

    def open_slots(self, model: str, step_s: float, on_change: Callable[[int], None] = lambda _: None) -> Slots:
        """Return the slots of a model whose steps are of `step_s`; `on_change` receives the number of those in use."""
        settings = self._settings
        follow = settings.max_streams == "auto"
        limits = SlotLimits(settings.slots, settings.upload_slots, follow=follow, connected=settings.connected)
        capacity = Capacity(objective_of(settings, step_s))
        self._slots[model] = slots = Slots(capacity, limits, self._clock, on_change, models=self._slots.values())
        return slots

    def close_slots(self, model: str) -> None:
        """Stop counting a model that is not served any more."""
        del self._slots[model]


def objective_of(settings: Settings, step_s: float) -> LatencyObjective:
    """Return the latency objective of a model whose steps are of `step_s`."""
    return LatencyObjective(step_s, settings.latency_budget_ms / 1_000)
