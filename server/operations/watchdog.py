"""Periodic checks, every 0.5 s: loop lag, backlogs, engine health, file descriptors, garbage collection."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from server.operations.drain import Drain, OpenSessions
from server.operations.gc_schedule import GcSchedule
from server.operations.metrics import Metrics

PERIOD_S = 0.5
FAILURES = 16
"""Failed streams in a row, without a successful batch between them, after which the device counts as lost. Client input
cannot make a step fail, because it is validated first."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.watchdog")


class EngineHealth:
    """Decides when the engine counts as lost. Pure."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._batches = 0
        self._failed = 0  # failed steps at the last check that saw a new batch

    def look(self, *, moves: bool, batches: int, failed: int, ended: str = "") -> str | None:
        """Check the totals so far; return why the engine is lost, None if it is not.

        `moves` is False for an engine that has ended, with the reason `ended`, or has been in one call for `timeout_s`.
        """
        if not moves:
            return f"the engine has ended: {ended}" if ended else f"no step has ended for {self._timeout_s:g} s"
        if batches != self._batches:
            self._batches, self._failed = batches, failed
        if failed - self._failed >= FAILURES:
            return f"{FAILURES} streams failed in a row without a successful step between them"
        return None


@dataclass(frozen=True, slots=True)
class WatchedEngine:
    """The engine of one model. `moves` returns False once it has ended or has been in one call for too long.

    `ended` returns why it has ended, and an empty text while it runs.
    """

    model: str
    moves: Callable[[], bool]
    ended: Callable[[], str]
    batches: Callable[[], int]
    failed: Callable[[], int]


class Watchdog:
    """Measures event loop lag, samples backlogs, checks engines and file descriptors, triggers garbage collection."""

    def __init__(
        self,
        metrics: Metrics,
        sessions: OpenSessions,
        drain: Drain,
        clock: Callable[[], float],
        *,
        engine_timeout_s: float,
        update_estimates: Callable[[], None],
    ) -> None:
        """`engine_timeout_s`: an engine in one call for longer counts as lost.

        `update_estimates` updates the capacity estimates while no batch runs.
        """
        self._metrics = metrics
        self._sessions = sessions
        self._drain = drain
        self._clock = clock
        self._engine_timeout_s = engine_timeout_s
        self._update_estimates = update_estimates
        self._engines: dict[str, tuple[WatchedEngine, EngineHealth]] = {}
        self._short_of_files = False
        self._timer: asyncio.TimerHandle | None = None
        self._gc_schedule = GcSchedule(clock())

    def watch(self, engine: WatchedEngine) -> None:
        """Start checking an engine."""
        self._engines[engine.model] = engine, EngineHealth(self._engine_timeout_s)

    def forget(self, model: str) -> None:
        """Stop checking a model's engine before it is stopped; its memory is freed by a later garbage collection."""
        self._engines.pop(model, None)
        self._gc_schedule.thaw(self._clock())

    def start(self) -> None:
        """Start checking every `PERIOD_S`. Call it on the event loop once the engine is warm."""
        loop = asyncio.get_running_loop()
        self._metrics.loop_tasks.set(len(asyncio.all_tasks(loop)))
        self._timer = loop.call_later(PERIOD_S, self._look, loop, loop.time() + PERIOD_S)

    def stop(self) -> None:
        """Cancel the next check."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._metrics.loop_lag.observe(max(0.0, loop.time() - due_s))
        self._sessions.look()
        self._look_at_engines()
        self._update_estimates()
        self._look_at_files()
        self._gc_schedule.look(self._clock(), len(self._sessions))
        self.start()

    def _look_at_engines(self) -> None:
        """Give up the replica if any of its engines is lost: a new process will serve all models again."""
        for engine, health in self._engines.values():
            seen = {"batches": engine.batches(), "failed": engine.failed()}
            reason = health.look(moves=engine.moves(), ended=engine.ended(), **seen)
            if reason is not None:
                self._drain.give_up(reason if len(self._engines) == 1 else f"model {engine.model}: {reason}")

    def _look_at_files(self) -> None:
        """Log a lack of file descriptors: the system then drops new connections without an error in the server."""
        short = not free_descriptor()
        if short:
            self._metrics.descriptor_shortages.inc()
        if short and not self._short_of_files:
            _log.error("no file descriptor is free: connections are dropped; raise the limit (ulimit -n)")
        elif self._short_of_files and not short:
            _log.warning("file descriptors are free again")
        self._short_of_files = short


def free_descriptor() -> bool:
    """Whether this process can open another file: tried, because the limit may be that of the system."""
    try:
        os.close(os.dup(1))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
