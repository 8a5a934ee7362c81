"""The front ends of a server: start, replacement of those that end or hang, and distribution of connections."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog

from server.operations.process import EXIT_LOST
from server.processes.children import START_ERRORS, Child, ChildGroup
from server.processes.listeners import refuse
from server.processes.messages import Accepted, Drain, Load

MAX_HELD = 1_024  # connections that wait while no front end is ready
SILENT_S = 10.0
"""Time without a report after which a front end hangs: its loop never blocks for more than some milliseconds."""
RESTARTS, WITHIN_S = 3, 60.0
"""Front ends that are replaced at once; those that end after them within this time, later. One that ends because its
engine has another model (`EXIT_LOST`) does not count: all of them end then."""
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.supervisor")


@dataclass(slots=True)
class Share:
    """Connections of one front end: those it reported, and those that were in transit to it at that time."""

    reported: int = 0
    received: int = 0  # since its start, when it reported
    handed: int = 0  # since its start

    @property
    def connections(self) -> int:
        """Connections that it has or will have."""
        return self.reported + self.handed - self.received


def least_loaded(shares: Iterable[tuple[int, Share]]) -> int | None:
    """Return the front end with the fewest connections, the first of several; None if there is none."""
    return min(shares, key=lambda pair: pair[1].connections, default=(None, None))[0]


class FrontEnds(ChildGroup):
    """Owns the front ends. Used only on the supervisor's event loop."""

    def __init__(
        self,
        count: int,
        start: Callable[[], Awaitable[Child]],
        *,
        on_gone: Callable[[Child], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` starts a front end; `on_gone` is called with each that has ended, before a new one is started."""
        super().__init__(max_silent_s=SILENT_S, clock=clock)
        self._count = count
        self._start = start
        self._on_gone = on_gone
        self._shares: dict[int, Share] = {}  # connections of the ready front ends
        self._children: dict[int, Child] = {}
        self._held: deque[tuple[str, int]] = deque()
        self._waiting = 0  # front ends that are to be started later
        self._refusing = 0  # connections
        self._restarts: deque[float] = deque(maxlen=RESTARTS)
        self._drained: set[int] = set()  # numbers
        self.draining = False
        self.empty = asyncio.Event()

    async def begin(self) -> None:
        """Start all and wait until they are ready. Raises: the error of a failed start."""
        await asyncio.gather(*(self._start_one() for _ in range(self._count)))

    @property
    def children(self) -> list[Child]:
        """The running front ends, including those that are not ready yet."""
        return list(self._children.values())

    @property
    def ready(self) -> list[Child]:
        """The front ends that accept connections."""
        return [self._children[number] for number in self._shares]

    async def _start_one(self) -> None:
        child = await self._start()
        self._children[child.number] = child
        await child.ready
        if self.draining:  # it started before the drain began, and did not receive the drain message
            child.channel.tell(Drain())
        self._shares[child.number] = Share()
        self._hand_on_held()

    def _hand_on_held(self) -> None:
        held, self._held = self._held, deque()
        for port, descriptor in held:
            self.hand_on(port, descriptor)

    def hand_on(self, port: str, descriptor: int) -> None:
        """Pass a connection to the front end with the fewest connections; hold it while no front end is ready.

        One that has not reported lately gets none, unless no other is left.
        """
        shares = [pair for pair in self._shares.items() if not self._children[pair[0]].channel.closed]
        number = least_loaded([pair for pair in shares if self._is_fresh(self._children[pair[0]])] or shares)
        if number is not None:
            self._shares[number].handed += 1
            self._children[number].channel.tell(Accepted(port), (descriptor,))
        elif self.empty.is_set() or len(self._held) + self._refusing >= MAX_HELD:
            os.close(descriptor)
        elif self._waiting == self._count:
            self._run(self._refuse(descriptor))
        else:
            self._held.append((port, descriptor))

    async def _refuse(self, descriptor: int) -> None:
        self._refusing += 1
        try:
            await refuse(descriptor, math.ceil(max(1.0, self._restarts[0] + WITHIN_S - self._clock())))
        finally:
            self._refusing -= 1

    def loaded(self, child: Child, load: Load) -> None:
        """Handle a front end's report."""
        self._note_report(child)
        share = self._shares.get(child.number)
        if share is not None:
            share.reported, share.received = load.connections, load.received

    def drained(self, child: Child) -> None:
        """Record that a front end has no stream left after a drain; it still answers requests."""
        self._drained.add(child.number)
        self._look_whether_empty()

    def _look_whether_empty(self) -> None:
        if self.draining and self._drained >= self._children.keys():
            self.empty.set()

    def begin_drain(self) -> None:
        """Replace no front end from now on; `empty` is set once all are drained or have ended."""
        self.draining = True
        self._look_whether_empty()

    def ended(self, child: Child) -> None:
        """Forget a front end that has ended; start another one unless the server drains."""
        self._shares.pop(child.number, None)
        self._reported_s.pop(child.number, None)
        if self._children.pop(child.number, None) is None:
            return
        self._on_gone(child)
        if self.draining or child.leaving:
            self._look_whether_empty()
            return
        _log.error("front end ended", number=child.number, status=child.process.returncode)
        self._run(self._replace(counts=child.process.returncode != EXIT_LOST))

    async def _replace(self, *, counts: bool) -> None:
        if counts:
            await self._wait()
            self._restarts.append(self._clock())
        if self.draining:
            return
        try:
            await self._start_one()
        except START_ERRORS:
            _log.exception("front end could not start")  # its end starts the next one

    async def _wait(self) -> None:
        """Wait while a front end may not be replaced yet; connections are refused while no other one is left."""
        wait_s = self._restarts[0] + WITHIN_S - self._clock() if len(self._restarts) == RESTARTS else 0.0
        if wait_s <= 0:
            return
        _log.error("front ends end too often: the next one starts later", seconds=round(wait_s), left=len(self.ready))
        self._waiting += 1
        self._hand_on_held()
        try:
            await asyncio.sleep(wait_s)
        finally:
            self._waiting -= 1

    async def stop(self) -> None:
        """End all at once."""
        self.draining = True
        for _, descriptor in self._held:
            os.close(descriptor)
        self._held.clear()
        await super().stop()
