"""Sources of audio as messages; a recording is split without delay or in real time by the event loop's clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

MESSAGE_S = 0.08
"""Audio per message: the server's default step, so that no step waits for a second message."""


class PcmSource:
    """Iterator over (S,) int16 samples as messages of bytes, until the end or until `stopping` is set.

    `began_s` and `ended_s` are the times of the first request and of the end.
    """

    def __init__(
        self,
        pcm: NDArray[np.int16],
        sample_rate: int,
        *,
        realtime: bool,
        message_s: float = MESSAGE_S,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._pcm = pcm.astype("<i2", copy=False)
        self._rate = sample_rate
        self._realtime = realtime
        self._message_samples = max(1, round(message_s * sample_rate))
        self._stopping = stopping
        self._taken = 0
        self.began_s: float | None = None
        self.ended_s: float | None = None

    @property
    def duration_s(self) -> float:
        """Seconds of audio; after a stop, only of the messages that were read."""
        samples = len(self._pcm) if self._stopping is None or not self._stopping.is_set() else self._taken
        return samples / self._rate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield each message; in real time mode at the time of its last sample."""
        loop = asyncio.get_running_loop()
        began_s = self.began_s = loop.time()
        for first in range(0, len(self._pcm), self._message_samples):
            message = self._pcm[first : first + self._message_samples]
            if self._realtime:
                await self._until(began_s + (first + len(message)) / self._rate)
            if self._stopping is not None and self._stopping.is_set():
                break
            self._taken += len(message)
            yield message.tobytes()
        self.ended_s = loop.time()

    async def _until(self, due_s: float) -> None:
        if self._stopping is None:
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                await self._stopping.wait()
