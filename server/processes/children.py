"""Child processes of the supervisor: start, control channel and end."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from model.errors import ModelError
from server.errors import EngineDead, ServerError
from server.processes.control import Answer, ControlChannel, Parcel
from server.processes.messages import Begin, Failed, Loaded, Ready, StopNow, Unloaded
from server.settings import Settings

START_ERRORS = (ModelError, ServerError, OSError)
"""Errors that prevent a child from starting."""
OOM_MAX = 1_000  # largest `oom_score_adj`
STOP_S = 5.0  # for a child that was asked to end; then it is killed


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
