"""Quota of each API key: calls open on this replica, and the limit. Counted in process.

A call is one connection or one upload, whatever the number of its channels: that is what an operator sells, while the
limit of the replica and `tutti_sessions_active` count channels, which are what a machine carries.
"""

from __future__ import annotations

from collections import Counter

from server.errors import TooManyStreams


class Quotas:
    """Open streams, by the id of their key."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def take(self, owner: str, streams: int, limit: int | None) -> Lease:
        """Count streams against a key; None is no limit. Raises: TooManyStreams."""
        lease = Lease(self._open, owner)
        lease.grow(streams, limit)
        return lease

    def open_streams(self, owner: str) -> int:
        """Open streams of this key."""
        return self._open[owner]

    def __len__(self) -> int:
        """Keys with open streams."""
        return len(self._open)


class Lease:
    """The streams that one request holds of its key's quota, until they are released, once."""

    def __init__(self, open_streams: Counter[str], owner: str) -> None:
        self._open = open_streams
        self._owner = owner
        self._held = 0
        self._released = False

    def grow(self, streams: int, limit: int | None) -> None:
        """Count further streams. Raises: TooManyStreams, and none is counted then."""
        assert not self._released, "a released lease cannot grow"
        if limit is not None and self._open[self._owner] + streams > limit:
            self._forget_if_none()
            raise TooManyStreams(f"this key may have {limit} streams open at a time")
        self._open[self._owner] += streams
        self._held += streams

    def release(self) -> None:
        """Stop counting the streams."""
        assert not self._released, "a lease is released once"
        self._released = True
        self._open[self._owner] -= self._held
        self._forget_if_none()

    def _forget_if_none(self) -> None:
        if not self._open[self._owner]:
            del self._open[self._owner]
