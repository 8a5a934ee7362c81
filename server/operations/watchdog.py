"""Every 0.5 s: loop lag, backlogs, engine health, file descriptors, garbage collection."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

import structlog
from prometheus_client import Counter

from server.operations.gc_schedule import GcSchedule
from server.replica import Replica

FAILURES = 16
"""Streams broken one after another, without one good batch between, after which the device is thought to be lost. What
one client sends cannot break a step: it is checked before."""


class EngineHealth:
    """Decides when an engine is given up."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._batches = 0.0
        self._failed = 0.0

    def look(self, *, moves: bool, batches: float, failed: float) -> str | None:
        """Take what was counted so far; return why the engine is to be given up, None if it is not.

        `moves` is false for an engine that has ended, or has been at one piece of work for `timeout_s`.
        """
        if not moves:
            return f"the engine has ended, or has been at one step for {self.timeout_s:g} s"
        if batches != self._batches:
            self._batches, self._failed = batches, failed
        if failed - self._failed >= FAILURES:
            return f"{FAILURES} streams in a row failed, and no step succeeded between them"
        return None


def free_descriptor() -> bool:
    """Whether this process can open another file or socket: tried, because the limit may be the system's too."""
    try:
        os.close(os.dup(1))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True


PERIOD_S = 0.5

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.pulse")


class Watchdog:
    """Measures the event loop's lag, samples backlogs, watches engine and descriptors, has garbage collected."""

    def __init__(self, replica: Replica, free: Callable[[], bool] = free_descriptor) -> None:
        self._replica = replica
        self._metrics = replica.metrics
        self._vigil = EngineHealth(replica.settings.engine_timeout_s)
        self._failed_steps = replica.metrics.errors.labels("step")
        self._free = free
        self._short_of_files = False
        self._timer: asyncio.TimerHandle | None = None
        self._garbage = GcSchedule(replica.clock())

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
