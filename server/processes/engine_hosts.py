"""The engine hosts that serve, one per place, and a spare host that can take over at once: start, loss, replacement."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from server.errors import EngineDead
from server.processes.children import START_ERRORS, Child
from server.processes.reports import Reports

DEATHS, WITHIN_S = 12, 60.0
"""Hosts that end within this time, after which the engine counts as lost."""
FAILED_STARTS = 2  # ends in a row after which the engine counts as lost
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.supervisor")


class EngineAssignment:
    """Assigns a host (by place) to each front end (by number). Used only on the supervisor's loop.

    Connections are distributed evenly among front ends, so a host has streams in proportion to its front ends.
    """

    def __init__(self, count: int) -> None:
        """`count`: number of places, at least 1."""
        self._count = count
        self._places: dict[int, int] = {}

    def assign(self, front_end: int) -> int:
        """Assign a front end to the place with the fewest front ends, the first of several; return the place."""
        used = list(self._places.values())
        place = min(range(self._count), key=used.count)
        self._places[front_end] = place
        return place

    def of(self, front_end: int) -> int:
        """Return the place of a front end; the first place for a front end that has ended."""
        return self._places.get(front_end, 0)

    def forget(self, front_end: int) -> None:
        """Free the place of a front end that has ended."""
        self._places.pop(front_end, None)


class EngineHosts:
    """Owns the engine hosts. Used only on the supervisor's event loop."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Child]],
        *,
        places: int = 1,
        spare: bool,
        timeout_s: float,
        on_moved: Callable[[int], None],
        on_lost: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` starts a host; a host counts as hung after `timeout_s` in one step, or without a report.

        `places`: number of hosts that serve at the same time; a spare host can replace any of them. `on_moved` is
        called if another host serves in this place while the last one still runs, so that front ends must leave it;
        `on_lost`, with the reason, if no host will serve in some place.
        """
        self._start = start
        self._with_spare = spare
        self._timeout_s = timeout_s
        self._reports = Reports(clock)
        self._on_moved, self._on_lost = on_moved, on_lost
        self._clock = clock
        self._serving: list[Child | None] = [None] * places
        self._spare: Child | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._changed = asyncio.Event()
        self._restarting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._spare_begun = False  # its process is being created
        self._failed_starts = 0
        self.lost: str | None = None

    async def begin(self) -> None:
        """Start a host in each place and wait until all can serve. Raises: ModelError, SettingsError, EngineDead."""
        for place in range(len(self._serving)):
            self._serving[place] = await self._start()
        await asyncio.gather(*(child.ready for child in self.children))
        self._changed.set()

    async def current(self, place: int = 0) -> Child:
        """Return the host that serves in a place, once it is ready; if it has ended, wait for its replacement.

        Raises: EngineDead if there will be no host.
        """
        while True:
            if self.lost is not None:
                raise EngineDead(self.lost)
            child = self._serving[place]
            if child is not None and child.alive and child.ready.done():
                return child
            self._changed.clear()
            await self._changed.wait()

    @property
    def children(self) -> list[Child]:
        """All hosts that run."""
        return [child for child in (*self._serving, self._spare) if child is not None]

    def ended(self, child: Child) -> None:
        """Replace a host that has ended unexpectedly."""
        if self._stopping or child.leaving:
            return
        if child is self._spare:
            self._spare = None
            self._run(self._replace_spare_later())
        elif child in self._serving:
            place = self._serving.index(child)
            self._serving[place] = None
            self._replace(place, child)

    def _replace(self, place: int, child: Child) -> None:
        now = self._clock()
        self._deaths.append(now)
        if len(self._deaths) == DEATHS and now - self._deaths[0] < WITHIN_S:
            self._lose(f"{DEATHS} engine hosts ended within {WITHIN_S:g} s")
            return
        spare, self._spare = self._spare, None
        with_spare = spare is not None and spare.ready.done() and spare.alive and self._reports.is_fresh(spare.number)
        if spare is not None and spare.ready.done() and not with_spare:
            self._kill(spare, self._reports.silent_s(spare.number))
            spare = None
        _log.error("engine host ended", status=child.process.returncode, place=place, spare=with_spare)
        if spare is not None and with_spare:
            self._promote(place, spare)
            self.look_after_spare()
        else:
            self._run(self._serve_with(place, spare))

    def _promote(self, place: int, child: Child) -> None:
        self._serving[place] = child
        self._changed.set()

    async def _serve_with(self, place: int, starting: Child | None) -> None:
        """Serve in a place with a starting or a new host; repeat until one is ready or the engine is lost."""
        while not self._stopping:
            try:
                child = starting or await self._start()
                await child.ready
            except START_ERRORS as error:
                starting = None
                self._failed_starts += 1
                _log.exception("engine host could not start")
                if self._failed_starts >= FAILED_STARTS:
                    self._lose(f"no engine host could start: {error}")
                    return
            else:
                self._failed_starts = 0
                self._promote(place, child)
                self.look_after_spare()
                return

    def _lose(self, why: str) -> None:
        self.lost = why
        self._changed.set()
        self._on_lost(why)

    def look_after_spare(self) -> None:
        """Start a spare host if one is wanted and there is none; at first once the front ends are ready."""
        if self._with_spare and self._spare is None and not self._spare_begun and not self._stopping:
            self._spare_begun = True
            self._run(self._start_spare())

    async def _start_spare(self) -> None:
        try:
            self._spare = spare = await self._start()
        finally:
            self._spare_begun = False
        try:
            await spare.ready
        except START_ERRORS:
            _log.exception("spare engine host could not start")

    async def _replace_spare_later(self) -> None:
        await asyncio.sleep(WITHIN_S / DEATHS)
        self.look_after_spare()

    async def restart(self) -> float:
        """Start another host for each place, switch to them once all are ready, and end the others.

        Returns: the seconds of their start. Raises: the error of a failed start; the present hosts continue then.
        """
        async with self._restarting:
            began = self._clock()
            fresh = await self._start_all()
            seconds = self._clock() - began
            old, self._spare = self.children, None
            for child in old:
                child.leaving = True
            for place, child in enumerate(fresh):
                self._promote(place, child)
                self._on_moved(place)
            _log.info("engine replaced", seconds=round(seconds, 2), engines=len(fresh))
            self._run(_end_slowly(old))
            self.look_after_spare()
            return seconds

    async def _start_all(self) -> list[Child]:
        """Return a new host for each place, all ready. Raises: the error of a failed start, after ending the others."""
        fresh = await asyncio.gather(*(self._start() for _ in self._serving))
        try:
            await asyncio.gather(*(child.ready for child in fresh))
        except BaseException:
            await asyncio.gather(*(child.stop() for child in fresh))
            raise
        return fresh

    def reported(self, child: Child, busy_s: float) -> None:
        """Handle a host's report: the longest time that one of its engines has spent on its present work."""
        self._reports.take(child.number)
        if busy_s > self._timeout_s:
            self._kill(child, busy_s)

    def look(self) -> None:
        """Kill hosts that have not reported for too long. Call it about every half second."""
        self._reports.look()
        for child in self.children:
            if (silent_s := self._reports.silent_s(child.number)) > self._timeout_s:
                self._kill(child, silent_s)

    def _kill(self, child: Child, seconds: float) -> None:
        """End a host that hangs; its end is handled as any other."""
        _log.error("engine hangs: its host is killed", seconds=round(seconds, 1))
        self._reports.forget(child.number)
        child.kill()

    async def stop(self) -> None:
        """End all hosts."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(child.stop() for child in self.children))

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


LET_GO_S = 2.0  # time in which front ends leave a replaced host


async def _end_slowly(children: list[Child]) -> None:
    await asyncio.sleep(LET_GO_S)
    await asyncio.gather(*(child.stop() for child in children))
