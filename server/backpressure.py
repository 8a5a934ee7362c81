"""Holds the reader of one connection back while its audio outruns the engine, so that TCP slows the client down."""

from __future__ import annotations

import asyncio

HIGH_WATER, LOW_WATER = 1 / 3, 1 / 6  # of the largest backlog: where reading stops, and where it goes on


class Backpressure:
    """What a reader waits at; for one reader only."""

    def __init__(self, max_backlog_s: float) -> None:
        self._high_s, self._low_s = max_backlog_s * HIGH_WATER, max_backlog_s * LOW_WATER
        self._room: asyncio.Future[None] | None = None

    @property
    def holding(self) -> bool:
        """True while the reader waits."""
        return self._room is not None

    def needed(self, backlog_s: float) -> bool:
        """Return whether the reader should wait."""
        return backlog_s > self._high_s

    async def wait(self) -> None:
        """Wait until there is room."""
        self._room = asyncio.get_running_loop().create_future()
        await self._room
        self._room = None

    def relieve(self, backlog_s: float) -> None:
        """Let the reader go on if the backlog has become small."""
        if backlog_s <= self._low_s:
            self.release()

    def release(self) -> None:
        """Let the reader go on whatever the backlog."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
