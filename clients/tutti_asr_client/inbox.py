"""Messages on their way to the caller: bounded, and honest about the end. Knows no socket."""

from __future__ import annotations

import asyncio
from collections import deque

from tutti_asr_client.messages import Message, Results


class Inbox:
    """A queue of messages; a caller who reads too slowly misses interims first, then the writer waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._over = False
        self._came = asyncio.Event()
        self._taken = asyncio.Event()

    async def put(self, message: Message) -> None:
        """Add a message, once there is room."""
        while len(self._messages) >= self._limit and not self._dropped():
            self._taken.clear()
            await self._taken.wait()
        self._messages.append(message)
        self._came.set()

    def _dropped(self) -> bool:
        for index, message in enumerate(self._messages):
            if isinstance(message, Results) and not message.is_final:
                del self._messages[index]
                return True
        return False

    def end(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._came.set()

    async def get(self) -> Message | None:
        """The oldest message; None when there are no more, and never will be."""
        while not self._messages:
            if self._over:
                return None
            self._came.clear()
            await self._came.wait()
        self._taken.set()
        return self._messages.popleft()
