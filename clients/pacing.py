"""PCM in messages, as fast as they are taken or at the speed of speech.

Owns the schedule of one recording. Knows no socket; its clock is the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

MESSAGE_S = 0.08
"""Audio in one message: the server's default step, so that none waits for the next message."""


class PcmSource:
    """(S,) int16 samples as messages of bytes; remembers when the first was asked for and the last one taken."""

    def __init__(
        self, pcm: NDArray[np.int16], sample_rate: int, *, realtime: bool, message_s: float = MESSAGE_S
    ) -> None:
        self._pcm = pcm.astype("<i2", copy=False)
        self._rate = sample_rate
        self._realtime = realtime
        self._message_samples = max(1, round(message_s * sample_rate))
        self.began_s: float | None = None
        self.ended_s: float | None = None

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self._pcm) / self._rate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Each message; in real time, when its last sample has been spoken."""
        loop = asyncio.get_running_loop()
        began_s = self.began_s = loop.time()
        for first in range(0, len(self._pcm), self._message_samples):
            message = self._pcm[first : first + self._message_samples]
            if self._realtime:
                spoken_s = began_s + (first + len(message)) / self._rate
                await asyncio.sleep(spoken_s - loop.time())
            yield message.tobytes()
        self.ended_s = loop.time()
