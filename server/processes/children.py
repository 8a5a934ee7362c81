"""Child processes of the supervisor: start, control channel and end."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Any

import structlog

from model.errors import ModelError
from server.errors import EngineDead, ServerError
from server.processes.control import Answer, ControlChannel, Parcel
from server.processes.messages import Begin, Failed, Loaded, Ready, StopNow, Unloaded
from server.settings import Settings

START_ERRORS = (ModelError, ServerError, OSError)
"""Errors that prevent a child from starting."""
OOM_MAX = 1_000  # largest `oom_score_adj`
STOP_S = 5.0  # for a child that was asked to end; then it is killed


PAUSE_S = 2.0
"""Time between two looks from which the supervisor itself was stopped, so that no report could arrive."""
FRESH_S = 2.0
"""Age of a report up to which a child surely works; children report every quarter or half second."""
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.supervisor")


class Role(StrEnum):
    """Role of a child; the value is the module in `server.processes` that it runs."""

    FRONT_END = "front_end"
    ENGINE_HOST = "engine_host"


class Child:
    """One child process, from its start to its end."""

    def __init__(self, role: Role, number: int, process: asyncio.subprocess.Process) -> None:
        self.role, self.number, self.process = role, number, process
        self.channel: ControlChannel
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving = False  # its end is expected
        self.models: dict[str, str] = {}
        """What each engine of a host computes, by the engine's name: `Loaded.model`."""

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""
        return not self.channel.closed and self.process.returncode is None

    @property
    def has_started(self) -> bool:
        """Whether it has become ready; before that it accepts only its settings."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    def require_alive(self) -> None:
        """Raises: EngineDead unless it accepts requests."""
        if not self.alive:
            raise EngineDead(f"{self.role.replace('_', ' ')} {self.number} has ended")

    def end_first(self, points: int) -> None:
        """Let the kernel end it before this process when memory is short, by this many thousandths of the memory.

        Source: `oom_score_adj` in proc(5). Does nothing where that cannot be set.
        """
        with contextlib.suppress(OSError, ValueError):
            own = int(Path("/proc/self/oom_score_adj").read_text())
            Path(f"/proc/{self.process.pid}/oom_score_adj").write_text(f"{min(own + points, OOM_MAX)}")

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self) -> None:
        """Ask it to end, and kill it if it does not or is still starting; returns once it has ended."""
        self.leaving = True
        if not self.has_started:
            self.kill()
        self.channel.tell(StopNow())
        try:
            await asyncio.wait_for(asyncio.shield(self.process.wait()), STOP_S)
        except TimeoutError:
            self.kill()
            await self.process.wait()


class ChildGroup(ABC):
    """The children of one role: kills those that hang, and runs the tasks that replace them. Used on one event loop.

    A child that has not reported yet is not silent.
    """

    def __init__(self, *, max_silent_s: float, clock: Callable[[], float]) -> None:
        """A child hangs once it has been silent for `max_silent_s`."""
        self._max_silent_s = max_silent_s
        self._clock = clock
        self._reported_s: dict[int, float] = {}  # by number: time of the last report
        self._looked_s = clock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    @abstractmethod
    def children(self) -> list[Child]:
        """All that run, including those that are not ready yet."""

    def look(self) -> None:
        """Kill children that have been silent for too long. Call it about every half second."""
        now = self._clock()
        if (paused_s := now - self._looked_s) > PAUSE_S:  # the supervisor was stopped
            self._reported_s = {number: time_s + paused_s for number, time_s in self._reported_s.items()}
        self._looked_s = now
        for child in self.children:
            if (silent_s := self._silent_s(child)) > self._max_silent_s:
                self._kill(child, silent_s)

    async def stop(self) -> None:
        """End all at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(child.stop() for child in self.children))

    def _note_report(self, child: Child) -> None:
        self._reported_s[child.number] = self._clock()

    def _silent_s(self, child: Child) -> float:
        """Return the seconds since a child's last report, 0 before its first."""
        now = self._clock()
        return now - self._reported_s.get(child.number, now)

    def _is_fresh(self, child: Child) -> bool:
        """Whether a child has reported recently, or not at all yet."""
        return self._silent_s(child) <= FRESH_S

    def _kill(self, child: Child, seconds: float) -> None:
        """End a child that hangs; its end is handled as any other."""
        fields = {"process": child.role, "number": child.number, "seconds": round(seconds, 1)}
        _log.error("process hangs: it is killed", **fields)
        self._reported_s.pop(child.number, None)
        child.kill()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def start_child(
    role: Role,
    number: int,
    settings: Settings,
    messages: Any,
    *,
    in_background: bool = False,
    answer: Callable[[Child], Answer],
    take: Callable[[Child, Parcel], None],
) -> Child:
    """Start a child and send it its settings; `ready` completes once it can work, or fails if it cannot start.

    `messages`: union of the message types. `in_background`: it loads while another one serves. `answer` receives the
    child's requests, `take` its other messages.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", f"server.processes.{role}", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
        )
    child = Child(role, number, process)

    def took(parcel: Parcel) -> None:
        if isinstance(parcel.message, Ready):
            _settle(child.ready, None)
        elif isinstance(parcel.message, Loaded):
            child.models[parcel.message.engine] = parcel.message.model
        elif isinstance(parcel.message, Unloaded):
            child.models.pop(parcel.message.engine, None)
        elif isinstance(parcel.message, Failed):
            _settle(child.ready, parcel.message.fault.error())
        else:
            take(child, parcel)

    def closed() -> None:
        _settle(child.ready, EngineDead(f"{role.replace('_', ' ')} {number} ended during its start"))

    child.channel = ControlChannel(ours, messages, answer=answer(child), take=took, on_closed=closed)
    child.channel.tell(Begin(pickle.dumps(settings), in_background))
    return child


def _settle(ready: asyncio.Future[None], error: Exception | None) -> None:
    if ready.done():
        return
    if error is None:
        ready.set_result(None)
    else:
        ready.set_exception(error)
        ready.exception()  # the supervisor reports an end that is not awaited here
