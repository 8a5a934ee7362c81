"""Interface of server-wide decisions, shared by all processes; `LocalCoordinator` implements it for one process.

Slots, quotas, used tickets and rates stay exact only if they are counted in one place. So a request waits for a
decision, which may come from another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from server.coordination.slots import StreamLease


class CallLease(Protocol):
    """One call's share of its key's quota, until it is released."""

    def release(self) -> None:
        """Stop counting the call; once."""


class Room(Protocol):
    """Admission of the streams of one model, and this process's measurements for its estimate."""

    @property
    def slots_used(self) -> int:
        """Number of slots held by this process's streams."""

    @property
    def estimate(self) -> int:
        """Estimated number of live streams of this model that the server can carry; 0 before any measurement."""

    @property
    def reserved(self) -> int:
        """Number of streams that service times allow and that pressure excludes."""

    @property
    def slowdown(self) -> float:
        """Current time of batches as a multiple of their time in the warm-up."""

    async def empty(self) -> None:
        """Wait until this process's streams hold no slot."""

    async def enter(self, streams: int, *, background: bool = False) -> StreamLease:
        """Hold slots for the streams of one session.

        Raises: ServerFull; ServerNotReady if the deciding process has ended.
        """

    async def enter_in_background(self, streams: int, within_s: float) -> StreamLease:
        """Wait until live streams leave room for these in the background, then hold slots for them.

        Raises: ServerFull after `within_s`; as `enter`.
        """

    def clear(self) -> None:
        """Drop all leases of this process after its engines have stopped; their release has no effect afterwards."""

    def warmed_up(self, step_s: Mapping[int, float]) -> None:
        """Take the service times by batch size that the warm-up measured."""

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

    def waited(self, seconds: float) -> None:
        """Take the wait of a live stream's result for work of other threads."""

    def ended(self, streams: int) -> None:
        """Count ended streams."""

    def requested(self) -> None:
        """Count a connection or request of a client, whether or not it is accepted."""

    def look(self) -> None:
        """Update the estimate if a period is over, for times without a batch."""


class TicketUse(Protocol):
    """Which resume tickets were used."""

    async def ticket_used(self, ticket: bytes) -> bool:
        """Whether a stream has continued from the ticket with this id.

        Raises: ServerNotReady if the deciding process has ended.
        """

    def use_ticket(self, ticket: bytes, issued_s: float) -> None:
        """Record that a stream continues from this ticket; `issued_s` is seconds since 1970."""


class Coordinator(TicketUse, Protocol):
    """Decisions about calls and streams. A call is one connection or upload, with any number of channels."""

    async def enter(self, owner: str, limit: int | None, openings: Sequence[str]) -> CallLease:
        """Count a call of this key, None: without a limit, if there is room for a stream.

        `openings`: the owners whose rate is checked, that is, the caller's address, and the key unless the server is
        open. Raises: TooManyOpenings, TooManyStreams, ServerFull; the call counts against no key then. ServerNotReady
        if the deciding process has ended.
        """

    async def enter_without_key(self, opening: str) -> None:
        """Count an opening of this address if there is room for a stream. Raises: TooManyOpenings, ServerFull."""

    def refuse_if_full(self) -> None:
        """Refuse a call early, from locally known facts; `enter` makes the decision. Raises: ServerFull."""

    def refuse_if_too_fast(self, opening: str) -> None:
        """Refuse early as `enter` would for this address, without counting an opening. Raises: TooManyOpenings."""

    def retry_after_s(self, shortest_s: int) -> int:
        """Return the whole seconds after which a refused client should come again, at least `shortest_s`."""

    @property
    def limit(self) -> float:
        """Channels of live streams that may be open at the present mix of models."""

    @property
    def estimate(self) -> float:
        """Estimated number of such channels within the latency objective."""

    def open_room(self, model: str, step_s: float, on_change: Callable[[int], None]) -> Room:
        """Return the room of a model whose steps are of `step_s`. `on_change` receives the number of slots in use."""

    def close_room(self, model: str) -> None:
        """Stop counting a model that is no longer served."""
