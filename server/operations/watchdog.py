"""A slow heartbeat on the event loop: how late it is woken, what only a sample shows, what nobody would report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from prometheus_client import Counter

from server.operations.gc_schedule import Garbage
from server.operations.vigil import EngineVigil, free_descriptor
from server.replica import Replica

PERIOD_S = 0.5

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.pulse")


class Pulse:
    """Measures the event loop's lag, samples backlogs, watches engine and descriptors, has garbage collected."""

    def __init__(self, replica: Replica, free: Callable[[], bool] = free_descriptor) -> None:
        self._replica = replica
        self._metrics = replica.metrics
        self._vigil = EngineVigil(replica.settings.engine_timeout_s)
        self._failed_steps = replica.metrics.errors.labels("step")
        self._free = free
        self._short_of_files = False
        self._timer: asyncio.TimerHandle | None = None
        self._garbage = Garbage(replica.clock())

    def start(self) -> None:
        """Begin. On the loop, once the engine is warm."""
        loop = asyncio.get_running_loop()
        self._metrics.loop_tasks.set(len(asyncio.all_tasks(loop)))
        self._timer = loop.call_later(PERIOD_S, self._beat, loop, loop.time() + PERIOD_S)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
        self._replica.sessions.observe_backlog()
        self._watch_engine()
        self._watch_files()
        self._garbage.look(self._replica.clock(), len(self._replica.sessions))
        self.start()

    def _watch_engine(self) -> None:
        moves = self._replica.recognizer.ready(self._vigil.timeout_s)
        reason = self._vigil.look(moves=moves, batches=_value(self._metrics.batches), failed=_value(self._failed_steps))
        if reason is not None:
            self._replica.drain.give_up(reason)

    def _watch_files(self) -> None:
        """Say when connections cannot be accepted: the system drops them without telling the server."""
        short = not self._free()
        if short:
            self._metrics.descriptor_shortages.inc()
        if short and not self._short_of_files:
            _log.error("no file descriptor is free: connections are dropped; raise the limit (ulimit -n)")
        elif self._short_of_files and not short:
            _log.warning("file descriptors are free again")
        self._short_of_files = short


def _value(counter: Counter) -> float:
    return next(iter(counter.collect())).samples[0].value
