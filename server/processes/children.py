"""Child processes of the supervisor: start, control channel and end."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from model.errors import ModelError
from server.errors import EngineDead, ServerError
from server.processes.control import Answer, ControlChannel, Parcel
from server.processes.messages import Begin, Failed, Ready, StopNow
from server.settings import Settings

START_ERRORS = (ModelError, ServerError, OSError)
"""Errors that prevent a child from starting."""
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

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""
        return not self.channel.closed and self.process.returncode is None

    @property
    def has_started(self) -> bool:
        """Whether it has become ready; before that it accepts only its settings."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

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
    answer: Callable[[Child], Answer],
    take: Callable[[Child, Parcel], None],
) -> Child:
    """Start a child and send it its settings; `ready` completes once it can work, or fails if it cannot start.

    `messages`: union of the message types. `answer` receives the child's requests, `take` its other messages.
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
        elif isinstance(parcel.message, Failed):
            _settle(child.ready, parcel.message.fault.error())
        else:
            take(child, parcel)

    def closed() -> None:
        _settle(child.ready, EngineDead(f"{role.replace('_', ' ')} {number} ended during its start"))

    child.channel = ControlChannel(ours, messages, answer=answer(child), take=took, on_closed=closed)
    child.channel.tell(Begin(pickle.dumps(settings)))
    return child


def _settle(ready: asyncio.Future[None], error: Exception | None) -> None:
    if ready.done():
        return
    if error is None:
        ready.set_result(None)
    else:
        ready.set_exception(error)
        ready.exception()  # the supervisor reports an end that is not awaited here
