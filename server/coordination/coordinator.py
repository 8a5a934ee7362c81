"""Server-wide decisions, shared by all processes: of one process, or of a front end that asks another one.

Slots, quotas, used tickets and rates stay exact only if they are counted in one place. So a request waits for a
decision, which may come from another process.
"""

from __future__ import annotations

from typing import Protocol

from server.coordination.limits import Lease
from server.coordination.local import LocalCoordinator
from server.coordination.remote import RemoteCoordinator, RemoteLease, RemoteSlots
from server.coordination.slots import Slots

ModelSlots = Slots | RemoteSlots
"""Slots of a model, which this process decides about, or another one."""


CallLease = Lease | RemoteLease
"""One call's share of its key's quota, until it is released."""

Coordinator = LocalCoordinator | RemoteCoordinator
"""Decisions about calls and streams. A call is one connection or upload, with any number of channels."""


class TicketUse(Protocol):
    """Which resume tickets were used."""

    async def ticket_used(self, ticket: bytes) -> bool:
        """Whether a stream has continued from the ticket with this id.

        Raises: ServerNotReady if the deciding process has ended.
        """

    def use_ticket(self, ticket: bytes, issued_s: float) -> None:
        """Record that a stream continues from this ticket; `issued_s` is seconds since 1970."""
