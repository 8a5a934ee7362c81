"""The engine hosts that serve, one per place, and a spare host that can take over at once: start, loss, replacement."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from server.errors import EngineDead, ModelStays, ServerNotReady
from server.processes.children import START_ERRORS, Child, ChildGroup
from server.processes.messages import Prepare

DEATHS, WITHIN_S = 12, 60.0
"""Hosts that end within this time, after which the engine counts as lost."""
WHAT_TO_DO = "restart the server to serve the new files, or put the old ones back and restart the engine"
SMALL = {"vad": "the voice detector", "speakers": "the speaker model"}
SERVING_POINTS, SPARE_POINTS = 200, 400
"""For `Child.end_first`: the loss of a spare host costs nothing, that of one that serves a pause."""
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


class EngineHosts(ChildGroup):
    """Owns the engine hosts. Used only on the supervisor's event loop."""

    def __init__(
        self,
        start: Callable[[bool], Awaitable[Child]],
        *,
        places: int = 1,
        spare: bool,
        timeout_s: float,
        on_moved: Callable[[int], None],
        on_lost: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` starts a host, with True one that loads in the background.

        A host counts as hung after `timeout_s` in one step, or without a report.

        `places`: number of hosts that serve at the same time; a spare host can replace any of them. `on_moved` is
        called if another host serves in this place while the last one still runs, so that front ends must leave it;
        `on_lost`, with the reason, if no host will serve in some place.
        """
        super().__init__(max_silent_s=timeout_s, clock=clock)
        self._start = start
        self._with_spare = spare
        self._on_moved, self._on_lost = on_moved, on_lost
        self._serving: list[Child | None] = [None] * places
        self._vacant: dict[int, Child] = {}  # by place: the host that was lost, until another one serves
        self._spare: Child | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._changed = asyncio.Event()
        self._restarting = asyncio.Lock()
        self._stopping = False
        self._spare_begun = False  # its process is being created
        self._failed_starts = 0
        self.lost: str | None = None

    async def begin(self) -> None:
        """Start a host in each place and wait until all can serve. Raises: ModelError, SettingsError, EngineDead."""
        for place in range(len(self._serving)):
            self._serving[place] = child = await self._start(False)
            child.end_first(SERVING_POINTS)
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
        spare = self._spare if self._spare is not None and self._spare.has_started else None
        if spare is not None:
            self._spare = None
            if spare.alive and not self._is_fresh(spare):
                self._kill(spare, self._silent_s(spare))
        with_spare = spare is not None and spare.alive
        _log.error("engine host ended", status=child.process.returncode, place=place, spare=with_spare)
        if spare is not None and with_spare:
            self._promote(place, spare)
            self.look_after_spare()
        else:
            self._vacant[place] = child
            self._run(self._serve_with_new(place))

    def _promote(self, place: int, child: Child) -> None:
        child.end_first(SERVING_POINTS)
        self._serving[place] = child
        self._changed.set()

    def _fill(self, place: int, child: Child) -> None:
        """Serve in a place whose host was lost, also with other models: then their streams end, and front ends too."""
        lost = self._vacant.pop(place)
        if changed := _other_models(child, lost):
            _log.critical(f"{changed}: open streams end, and the front ends restart with the new files", place=place)
        self._promote(place, child)

    async def _serve_with_new(self, place: int) -> None:
        """Serve in a place with a new host; repeat until one is ready or the engine is lost.

        A spare host that is still loading does so in the background, so this host is ready first if there are few
        cores. The other one becomes the spare.
        """
        while not self._stopping:
            try:
                child = await self._start(False)
                await child.ready
            except START_ERRORS as error:
                self._failed_starts += 1
                _log.exception("engine host could not start")
                if self._failed_starts >= FAILED_STARTS:
                    self._lose(f"no engine host could start: {error}")
                    return
            else:
                self._failed_starts = 0
                if place in self._vacant:
                    self._fill(place, child)
                    self.look_after_spare()
                elif self._with_spare and self._spare is None and not self._spare_begun:
                    self._spare = child
                    await self._take_spare(child)
                else:
                    await child.stop()
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
            self._spare = spare = await self._start(True)
        finally:
            self._spare_begun = False
        await self._take_spare(spare)

    async def _take_spare(self, spare: Child) -> None:
        """Wait until a spare host is ready; keep it, serve with it if a host was lost meanwhile, or end it."""
        spare.end_first(SPARE_POINTS)
        try:
            await spare.ready
        except START_ERRORS:
            if not spare.leaving:
                _log.exception("spare engine host could not start")
            return
        if self._spare is not spare:  # it serves already
            return
        used = [*self._vacant.values(), *(child for child in self._serving if child is not None)]
        if changed := next(filter(None, (_other_models(spare, child) for child in used)), ""):
            self._spare = None
            _log.error(f"there is no spare engine host: {changed}; {WHAT_TO_DO}")
            await spare.stop()
        elif self._vacant:
            self._spare = None
            self._fill(next(iter(self._vacant)), spare)

    async def _replace_spare_later(self) -> None:
        await asyncio.sleep(WITHIN_S / DEATHS)
        self.look_after_spare()

    async def restart(self) -> float:
        """Start another host for each place, switch to them once all are ready, and end the others.

        Returns: the seconds of their start.
        Raises: ServerNotReady if one cannot start, ModelStays if one has another model than the present host of its
            place; the present hosts continue then.
        """
        async with self._restarting:
            began = self._clock()
            try:
                fresh = await self._start_all()
            except asyncio.CancelledError:
                _not_replaced("the front end that received the request has ended")
                raise
            except START_ERRORS as error:
                _not_replaced(str(error))
                if isinstance(error, ModelStays):
                    raise
                raise ServerNotReady(f"no new engine could start: {error}; the present one continues") from error
            seconds = self._clock() - began
            old, self._spare = self.children, None
            self._vacant.clear()
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
        """Return a new host for each place, all ready, with the models of the present ones.

        Raises: the error of a failed start, or ModelStays, after ending the others.
        """
        fresh = await asyncio.gather(*(self._start(True) for _ in self._serving))
        try:
            await asyncio.gather(*(child.ready for child in fresh))
            await asyncio.gather(*map(_prepare, fresh, self._serving))
            for child in fresh:
                child.require_alive()
        except BaseException:
            await asyncio.gather(*(child.stop() for child in fresh))
            raise
        return fresh

    def reported(self, child: Child, busy_s: float) -> None:
        """Handle a host's report: the longest time that one of its engines has spent on its present work."""
        self._note_report(child)
        if busy_s > self._max_silent_s:
            self._kill(child, busy_s)

    async def stop(self) -> None:
        """End all hosts."""
        self._stopping = True
        await super().stop()


def _other_models(child: Child, than: Child) -> str:
    """Return which engines of a host have another model than the same engines of another host; empty if none has."""
    names = [name for name, model in child.models.items() if than.models.get(name, model) != model]
    return f"the files of {', '.join(map(_shown, sorted(names)))} have changed" if names else ""


def _shown(engine: str) -> str:
    kind, _, model = engine.partition(" ")
    if kind in SMALL:
        return SMALL[kind]
    return f"the model {model!r}" if model else "the model"


async def _prepare(child: Child, present: Child | None) -> None:
    """Start the engines of the present host in a new one. Raises: ModelStays if their models differ."""
    if present is None:
        return
    for engine in present.models.keys() - child.models.keys():  # loaded on demand
        await child.channel.request(Prepare(engine))
    if changed := _other_models(child, present):
        raise ModelStays(f"{changed}, and open streams cannot continue with other files: {WHAT_TO_DO}")


def _not_replaced(reason: str) -> None:
    _log.error("engine not replaced: the present one continues", reason=reason)


LET_GO_S = 2.0  # time in which front ends leave a replaced host


async def _end_slowly(children: list[Child]) -> None:
    await asyncio.sleep(LET_GO_S)
    await asyncio.gather(*(child.stop() for child in children))
