"""Room with an estimate from measurements of this process: its batches, its event loop, its late steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from batching.capacity import Capacity
from server.coordination.admission import Admission, Machine, ThreadTime
from server.coordination.slots import ModelRoom, StreamLease


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """The operator's limits. `follow`: live streams are limited by the estimate in addition to the slots."""

    slots: int
    background_slots: int
    follow: bool


class MeasuredRoom(ModelRoom):
    """A `ModelRoom` that takes measurements and updates its own estimate once a period."""

    def __init__(
        self,
        capacity: Capacity,
        machine: Machine,
        limits: RoomLimits,
        *,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] | None = None,
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`busy_clock`: seconds so far that the event loop computed or waited for a core; see `ThreadTime`."""
        super().__init__(
            Admission(limits.slots, capacity, follow=limits.follow),
            machine,
            background_slots=limits.background_slots,
            clock=clock,
            on_change=on_change,
        )
        self._capacity = capacity
        self._busy_clock = busy_clock or ThreadTime()

    async def enter(self, streams: int, *, background: bool = False) -> StreamLease:
        """Hold slots for the streams of one session. Raises: ServerFull."""
        self.look()
        return await super().enter(streams, background=background)

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Take the service times by batch size that the warm-up measured."""
        self._capacity.warmed_up(step_s)
        self.update()

    def ran(  # noqa: PLR0917 - one call a batch
        self,
        rows: int,
        step_s: float,
        live_ages_s: Sequence[float],
        steps: int,
        rows_in_all: int = 0,
        forked: int = 0,
        outside_s: float = 0.0,
    ) -> None:
        """Take a batch: rows, its time in the model, the ages of its live steps when answered, steps of each stream.

        `rows` are of this process; `rows_in_all` of all that share the engine, 0 if there is no other. `forked`: rows
        of forks, whose ages are left out. `outside_s`: the engine's time for the batch outside the model.
        """
        self._machine.rows += rows
        self._capacity.ran(rows, step_s, live_ages_s, steps, rows_in_all, forked, outside_s)
        self.look()

    def waited(self, seconds: float) -> None:
        """Take the wait of a live stream's result for work of other threads."""
        self._capacity.waited(seconds)

    def ended(self, streams: int) -> None:
        """Count ended streams."""
        self._capacity.ended(streams)

    def requested(self) -> None:
        """Count a connection or request of a client, whether or not it is accepted."""
        self._capacity.requested(1)

    def look(self) -> None:
        """Update the estimate if a period is over."""
        now = self._clock()
        if not self._capacity.due(now):
            return  # this thread's CPU time is a system call: once a period, not once a batch
        self._capacity.look(now, self._busy_clock(), self._load, self._machine.rows)
        self.update()
