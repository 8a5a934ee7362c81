"""A slow heartbeat on the event loop: how late it is woken, and what only a sample can show."""

from __future__ import annotations

import asyncio

from server.drain import OpenSessions
from server.metrics import Metrics

PERIOD_S = 0.5


class Pulse:
    """Measures the event loop's lag, and samples backlogs, until stopped."""

    def __init__(self, metrics: Metrics, sessions: OpenSessions) -> None:
        self._metrics = metrics
        self._sessions = sessions
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin. On the loop."""
        loop = asyncio.get_running_loop()
        self._metrics.loop_tasks.set(len(asyncio.all_tasks(loop)))
        self._timer = loop.call_later(PERIOD_S, self._beat, loop, loop.time() + PERIOD_S)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
        self._sessions.observe_backlog()
        self.start()
