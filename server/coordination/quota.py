"""Quota of each API key: the calls open on this replica and their limit. Counted per process.

A call is one connection or upload with any number of channels: the unit that operators sell. The limit of the replica
and `tutti_sessions_active` count channels: the unit of load.
"""

from __future__ import annotations

from collections import Counter

from server.errors import TooManyStreams


class Quotas:
    """Open streams by key id."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def take(self, owner: str, streams: int, limit: int | None) -> Lease:
        """Count streams against a key; `limit` None: no limit. Raises: TooManyStreams."""
        lease = Lease(self._open, owner)
        lease.grow(streams, limit)
        return lease


class Lease:
    """One request's share of its key's quota, until it is released."""

    def __init__(self, open_streams: Counter[str], owner: str) -> None:
        self._open = open_streams
        self._owner = owner
        self._held = 0
        self._released = False

    def grow(self, streams: int, limit: int | None) -> None:
        """Count further streams. Raises: TooManyStreams, without counting them."""
        assert not self._released, "a released lease cannot grow"
        if limit is not None and self._open[self._owner] + streams > limit:
            self._forget_if_none()
            raise TooManyStreams(f"this key may have {limit} streams open at a time; close one or retry later")
        self._open[self._owner] += streams
        self._held += streams

    def release(self) -> None:
        """Stop counting the streams."""
        assert not self._released, "a lease can be released only once"
        self._released = True
        self._open[self._owner] -= self._held
        self._forget_if_none()

    def _forget_if_none(self) -> None:
        if not self._open[self._owner]:
            del self._open[self._owner]
