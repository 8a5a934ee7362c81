"""Interface of what is decided once for all processes of a server; with one process, `LocalCoordinator`.

A slot, a quota and a retry time stay exact only if one place counts them. So a request asks before it is answered, and
waits for the answer: another process may have it.
"""

from __future__ import annotations

from typing import Protocol


class CallLease(Protocol):
    """One call's share of its key's quota, until it is released."""

    def release(self) -> None:
        """Stop counting the call; once."""


class Coordinator(Protocol):
    """Decisions about calls. A call is one connection or upload, with any number of channels."""

    async def enter(self, owner: str, limit: int | None) -> CallLease:
        """Count a call of this key, None: without a limit, if there is room for a stream.

        Raises: TooManyStreams, ServerFull; nothing is counted then.
        """

    def refuse_if_full(self) -> None:
        """Refuse a call by what is known without asking: a hint, `enter` decides. Raises: ServerFull."""

    def retry_after_s(self, shortest_s: int) -> int:
        """Return the whole seconds after which a refused client should come again, at least `shortest_s`."""
