"""Coordinator of a single-process server: quotas, rates, rooms and used tickets are local objects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from batching.capacity import Capacity
from server.coordination.admission import Admission, Estimator, Machine
from server.coordination.measured_room import MeasuredRoom, RoomLimits
from server.coordination.opening_rate import OpeningRate, automatic
from server.coordination.quota import Lease, Quotas
from server.coordination.retry_after import RetryAfter
from server.coordination.slots import ModelRoom
from server.coordination.used_tickets import UsedTickets
from server.errors import ServerFull
from server.settings import Settings


class LocalCoordinator:
    """Implements `Coordinator`; its answers never wait."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """`wall_clock` is seconds since 1970, for tickets of other servers."""
        self.quotas = Quotas()
        self.openings = OpeningRate(self._openings_per_s(settings))
        self.tickets = UsedTickets(settings.resume_ttl_s, wall_clock)
        self.machine = Machine()
        self._rooms: dict[str, ModelRoom] = {}
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
        """Count a call of this key, without waiting. Raises: TooManyOpenings, TooManyStreams, ServerFull."""
        return self.enter_now(owner, limit, openings)

    def enter_now(self, owner: str, limit: int | None, openings: Sequence[str]) -> Lease:
        """Do as `enter`."""
        for opening in openings:
            self.openings.take(opening, self._clock())
        lease = self.quotas.take(owner, 1, limit)
        try:
            self.refuse_if_full()
        except ServerFull:
            lease.release()
            raise
        return lease

    async def enter_without_key(self, opening: str) -> None:
        """Count an opening of this address if there is room for a stream. Raises: TooManyOpenings, ServerFull."""
        self.enter_without_key_now(opening)

    def enter_without_key_now(self, opening: str) -> None:
        """Do as `enter_without_key`."""
        self.openings.take(opening, self._clock())
        self.refuse_if_full()

    def refuse_if_full(self) -> None:
        """Refuse a call if no model can take a stream now. Raises: ServerFull."""
        rooms = [room for room in self._rooms.values() if room.estimate]  # a model that is loading has none
        for room in rooms[:-1]:
            with contextlib.suppress(ServerFull):
                room.refuse_if_full()
                return
        if rooms:
            rooms[-1].refuse_if_full()

    def refuse_if_too_fast(self, opening: str) -> None:
        """Refuse as `enter` would for this address, without counting an opening. Raises: TooManyOpenings."""
        self.openings.refuse_if_exceeded(opening, self._clock())

    def retry_after_s(self, shortest_s: int) -> int:
        """Return the whole seconds after which a refused client should come again."""
        return self._retry.seconds(shortest_s, self._clock())

    # Tickets

    async def ticket_used(self, ticket: bytes) -> bool:
        """Whether a stream has continued from the ticket with this id."""
        return ticket in self.tickets

    def use_ticket(self, ticket: bytes, issued_s: float) -> None:
        """Note that a stream continues from this ticket."""
        self.tickets.add(ticket, issued_s)

    # Models

    @property
    def limit(self) -> float:
        """Channels of live streams that may be open at the present mix of models; 0 before there is a model."""
        return float(self.machine.limit(lambda one: one.limit)) if self._rooms else 0.0

    @property
    def estimate(self) -> float:
        """Estimated number of such channels within the latency objective."""
        return float(self.machine.limit(lambda one: one.estimate)) if self._rooms else 0.0

    def open_room(self, model: str, step_s: float, on_change: Callable[[int], None]) -> MeasuredRoom:
        """Return the room of a model, measured in this process."""
        room = MeasuredRoom(
            capacity_of(self._settings, step_s),
            self.machine,
            limits_of(self._settings),
            clock=self._clock,
            on_change=on_change,
        )
        self._rooms[model] = room
        return room

    def add_room(self, model: str, estimator: Estimator) -> ModelRoom:
        """Return the room of a model that other processes measure."""
        limits = limits_of(self._settings)
        admission = Admission(limits.slots, estimator, follow=limits.follow)
        room = ModelRoom(admission, self.machine, background_slots=limits.background_slots, clock=self._clock)
        self._rooms[model] = room
        return room

    def close_room(self, model: str) -> None:
        """Stop counting a model that is not served any more."""
        self.machine.leave(self._rooms.pop(model).admission)


def capacity_of(settings: Settings, step_s: float) -> Capacity:
    """Return the estimate of a model whose steps are of `step_s`."""
    return Capacity(step_s=step_s, objective_s=settings.latency_budget_ms / 1_000, max_batch=settings.max_batch)


def limits_of(settings: Settings) -> RoomLimits:
    """Return the limits of each model's room."""
    return RoomLimits(settings.slots, settings.upload_slots, follow=settings.max_streams == "auto")
