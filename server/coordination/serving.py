"""Decisions for the front ends of a server: one `LocalCoordinator`, and the leases of each front end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

from server.coordination.limits import Lease
from server.coordination.local import LocalCoordinator
from server.coordination.messages import (
    Answer,
    AskTicket,
    CloseSlots,
    Enter,
    ExpectCall,
    GiveBack,
    Leave,
    Notice,
    Numbers,
    OpenSlots,
    RefuseHint,
    ReportSteps,
    Request,
    StreamsEnded,
    TakeCall,
    TakeSlots,
    UseTicket,
)
from server.coordination.slots import Slots, StreamLease
from server.errors import Refused, ServerFull, ServerNotReady
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class _Served:
    """A model that front ends serve, with the seconds by rows of each one's engine, and its streams that rest."""

    slots: Slots
    batch_s: dict[int, dict[int, float]] = field(default_factory=dict)
    resting: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Child:
    """The leases of one front end, by its lease numbers."""

    calls: dict[int, Lease] = field(default_factory=dict)
    streams: dict[int, tuple[str, StreamLease]] = field(default_factory=dict)  # with the model
    waiting: dict[int, asyncio.Task[None]] = field(default_factory=dict)


class CoordinationServer:
    """Handles the messages of front ends, which are identified by numbers. Used on one event loop.

    `decide` and `take` receive the messages of a front end in order of arrival, and handle them before they return.
    Only the answer to a `TakeSlots` that waits comes later; it is cancelled if its front end gives the slots back
    meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        *,
        on_hint: Callable[[RefuseHint], None] = lambda _: None,
        engine_of: Callable[[int], int] = lambda _: 0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_hint` sends a hint to all front ends; it is called when that changes. `wall_clock`: since 1970.

        `engine_of`: number of the engine that computes the streams of a front end.
        """
        self.coordinator = LocalCoordinator(settings, clock, wall_clock=wall_clock)
        self._served: dict[str, _Served] = {}
        self._children: dict[int, _Child] = {}
        self._on_hint = on_hint
        self._engine_of = engine_of
        self._hint = RefuseHint(None)

    @property
    def slots_used(self) -> int:
        """Slots that streams hold, of all models and front ends."""
        return sum(served.slots.slots_used for served in self._served.values())

    def full_hint(self) -> RefuseHint:
        """Return why no model can accept a stream now, so that front ends can refuse calls without a request."""
        try:
            self.coordinator.refuse_if_full()
        except ServerFull as error:
            return RefuseHint(str(error))
        return RefuseHint(None)

    def decide(self, child: int, request: Request) -> asyncio.Future[Any]:
        """Handle a request of a front end; the result is its answer, or the `Refused` that is raised for it."""
        holder = self._children.setdefault(child, _Child())
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            if isinstance(request, TakeSlots) and request.within_s is not None:
                answer = self._wait(holder, request)
            else:
                answer.set_result(self._answer(child, holder, request))
        except Refused as error:
            answer.set_exception(error)
        self._tell_hint()
        return answer

    def take(self, child: int, notice: Notice) -> None:
        """Handle a message of a front end that has no answer."""
        self._take(child, self._children.setdefault(child, _Child()), notice)
        self._tell_hint()

    def forget(self, child: int) -> None:
        """Release all leases of a front end that has ended; the engines have closed its streams."""
        holder = self._children.pop(child, _Child())
        for task in holder.waiting.values():
            task.cancel()
        for call in holder.calls.values():
            call.release()
        for _, lease in holder.streams.values():
            lease.cancel()
        for model in [name for name, served in self._served.items() if child in served.batch_s]:
            self._close_slots(child, model)
        self._tell_hint()

    def _tell_hint(self) -> None:
        hint = self.full_hint()
        if hint != self._hint:
            self._hint = hint
            self._on_hint(hint)

    # Requests

    def _answer(self, child: int, holder: _Child, message: Request) -> Answer:
        """Raises: Refused, which is the answer."""
        match message:
            case Enter(lease, openings, owner, limit):
                holder.calls[lease] = self.coordinator.enter_now(owner, limit, openings)
                return None
            case TakeSlots(lease, model, streams, background, _):
                held = self._served_of(model).slots.take_now(streams, background=background)
                holder.streams[lease] = model, held
                return None
            case AskTicket(ticket):
                return ticket in self.coordinator.tickets
            case ExpectCall(call, ttl_s):
                self.coordinator.calls.add(call, ttl_s)
                return None
            case TakeCall(uuid, key_id):
                return self.coordinator.calls.take(uuid, key_id)
            case ReportSteps(model, steps, resting):
                served = self._served_of(model)
                served.resting[child] = resting
                served.slots.report(steps, sum(served.resting.values()))
                return self._numbers(served)
            case _:
                assert_never(message)

    def _served_of(self, model: str) -> _Served:
        """Raises: ServerNotReady."""
        served = self._served.get(model)
        if served is None:
            raise ServerNotReady(f"the model {model!r} is not loaded")
        return served

    def _numbers(self, served: _Served) -> Numbers:
        slots, all_models = served.slots, self.coordinator
        return Numbers(
            slots.estimate,
            slots.reserved,
            slots.slowdown,
            all_models.limit,
            all_models.estimate,
            len(served.batch_s),
            self.full_hint().full,
        )

    def _wait(self, holder: _Child, message: TakeSlots) -> asyncio.Task[None]:
        """Raises: ServerNotReady."""
        slots = self._served_of(message.model).slots

        async def enter() -> None:
            try:
                held = await slots.take(message.streams, background=message.background, within_s=message.within_s)
            finally:
                holder.waiting.pop(message.lease, None)
            holder.streams[message.lease] = message.model, held
            self._tell_hint()

        holder.waiting[message.lease] = task = asyncio.get_running_loop().create_task(enter())
        return task

    # Notices

    def _take(self, child: int, holder: _Child, message: Notice) -> None:
        match message:
            case Leave(lease):
                if lease in holder.calls:  # else it was refused
                    holder.calls.pop(lease).release()
            case GiveBack(lease, slots):
                self._give_back(holder, lease, slots)
            case UseTicket(ticket, issued_s):
                self.coordinator.use_ticket(ticket, issued_s)
            case OpenSlots(model, step_s, batch_s):
                if model not in self._served:
                    self._served[model] = _Served(self.coordinator.open_slots(model, step_s))
                self._served[model].batch_s[child] = batch_s
                self._measure(self._served[model])
            case CloseSlots(model):
                self._close_slots(child, model)
            case StreamsEnded(model):
                self._none_rest(child, model)
                for lease in [lease for lease, (name, _) in holder.streams.items() if name == model]:
                    holder.streams.pop(lease)[1].cancel()
            case _:
                assert_never(message)

    def _give_back(self, holder: _Child, lease: int, slots: int) -> None:
        if lease in holder.waiting:
            holder.waiting.pop(lease).cancel()
        elif lease in holder.streams:  # otherwise it was refused, or its engines have stopped
            held = holder.streams[lease][1]
            for _ in range(min(slots, held.slots)):
                held.closed()
            if not held.slots:
                del holder.streams[lease]

    def _none_rest(self, child: int, model: str) -> None:
        served = self._served.get(model)
        if served is not None:
            served.slots.rest(-served.resting.pop(child, 0))

    def _measure(self, served: _Served) -> None:
        """Measure the slots again, after a front end began or ended to serve the model."""
        engines: dict[int, list[dict[int, float]]] = {}
        for child, batch_s in served.batch_s.items():
            engines.setdefault(self._engine_of(child), []).append(batch_s)
        served.slots.measured([(found[0], len(found)) for found in engines.values()])

    def _close_slots(self, child: int, model: str) -> None:
        """Remove a front end from a model; after the last one, the model is no longer served."""
        served = self._served.get(model)
        self._none_rest(child, model)
        if served is None or served.batch_s.pop(child, None) is None:
            return
        if served.batch_s:
            self._measure(served)
        else:
            del self._served[model]
            self.coordinator.close_slots(model)
