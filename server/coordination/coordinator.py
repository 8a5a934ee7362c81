"""Interface of server-wide decisions, shared by all processes; `LocalCoordinator` implements it for one process.

Slots, quotas, used tickets and rates stay exact only if they are counted in one place. So a request waits for a
decision, which may come from another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from server.coordination.expected_calls import ExpectedCall
from server.coordination.remote import RemoteSlots
from server.coordination.slots import Slots

ModelSlots = Slots | RemoteSlots
"""Slots of a model, which this process decides about, or another one."""


class CallLease(Protocol):
    """One call's share of its key's quota, until it is released."""

    def release(self) -> None:
        """Stop counting the call; once."""


class TicketUse(Protocol):
    """Which resume tickets were used."""

    async def ticket_used(self, ticket: bytes) -> bool:
        """Whether a stream has continued from the ticket with this id.

        Raises: ServerNotReady if the deciding process has ended.
        """

    def use_ticket(self, ticket: bytes, issued_s: float) -> None:
        """Record that a stream continues from this ticket; `issued_s` is seconds since 1970."""


class CallBook(Protocol):
    """Options that clients register for calls that come without a query of their own."""

    async def expect_call(self, call: ExpectedCall, ttl_s: float) -> None:
        """Expect a call for `ttl_s`. Raises: NotAllowed, TooManyStreams, ServerFull, ServerNotReady."""

    async def take_call(self, uuid: str, key_id: str | None = None) -> ExpectedCall | None:
        """Return a call's options, once; `key_id`: only if they are of this key.

        Raises: ServerNotReady if the deciding process has ended.
        """


class Coordinator(TicketUse, CallBook, Protocol):
    """Decisions about calls and streams. A call is one connection or upload, with any number of channels."""

    async def enter(self, owner: str, limit: int | None, openings: Sequence[str]) -> CallLease:
        """Count a call of this key if there is room for a stream; `limit` None: any number of calls.

        `openings`: the owners whose rate is checked, that is, the caller's address, and the key unless the server is
        open. Raises: TooManyOpenings, TooManyStreams, ServerFull; the call counts against no key then. ServerNotReady
        if the deciding process has ended.
        """

    def refuse_if_full(self) -> None:
        """Refuse a call early, from locally known facts; `enter` makes the decision. Raises: ServerFull."""

    def refuse_if_too_fast(self, opening: str) -> None:
        """Refuse early as `enter` would for this address, without counting an opening. Raises: TooManyOpenings."""

    def retry_after_s(self, shortest_s: int) -> int:
        """Return the whole seconds after which a refused client should come again, at least `shortest_s`."""

    @property
    def limit(self) -> float:
        """Channels of live streams that may step at the present mix of models."""

    @property
    def estimate(self) -> float:
        """Estimated number of such channels within the latency objective."""

    def open_slots(self, model: str, step_s: float, on_change: Callable[[int], None]) -> ModelSlots:
        """Return the slots of a model whose steps are of `step_s`. `on_change` receives the number of those in use."""

    def close_slots(self, model: str) -> None:
        """Stop counting a model that is no longer served."""
