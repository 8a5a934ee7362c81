"""Common part of every child process: receives settings on the control channel, works, and ends with its supervisor."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
import uvloop

from model.errors import ModelError
from server.errors import EngineDead, SettingsError
from server.operations.logs import FLUSH_S, configure_logs
from server.operations.process import return_large_blocks
from server.processes.control import ControlChannel, Fault, Parcel
from server.processes.messages import Begin, Failed
from server.settings import Settings

EXIT_FAILED = 1
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.child")


@dataclass
class ChildProcess:
    """This process: its settings and channel. The role's code sets the callback functions before it sends `Ready`.

    Until then the event loop must stay free, so that a process whose supervisor ends while it loads ends too.
    """

    answer: Callable[[Parcel], Awaitable[Parcel]] | None = None
    take: Callable[[Parcel], None] | None = None
    on_orphaned: Callable[[], None] = lambda: os._exit(EXIT_FAILED)  # before it serves streams
    settings: Settings = field(init=False)
    in_background: bool = field(init=False)
    channel: ControlChannel = field(init=False)

    async def begun(self, end: socket.socket, messages: Any) -> None:
        """Open the channel and wait for the first message."""
        began: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()

        def take(parcel: Parcel) -> None:
            if isinstance(parcel.message, Begin):
                began.set_result(parcel.message)
            elif self.take is not None:
                self.take(parcel)

        async def answer(parcel: Parcel) -> Parcel:
            if self.answer is None:
                raise EngineDead("the process is starting")
            return await self.answer(parcel)

        def closed() -> None:
            if not began.done():
                began.set_exception(EOFError("the supervisor has ended"))
            self.on_orphaned()

        self.channel = ControlChannel(end, messages, answer=answer, take=take, on_closed=closed)
        begin = await began
        self.settings = pickle.loads(begin.settings)  # noqa: S301 - from our own supervisor, over an inherited socket
        self.in_background = begin.in_background


def run_child(messages: Any, work: Callable[[ChildProcess], Awaitable[int]]) -> int:
    """Run `work` with the descriptor of the control channel that the command line names; return the exit status.

    Signals from a terminal reach all processes of a server; only the supervisor acts on them.
    """
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(end, messages, work))


async def _run(end: socket.socket, messages: Any, work: Callable[[ChildProcess], Awaitable[int]]) -> int:
    process = ChildProcess()
    try:
        await process.begun(end, messages)
    except EOFError:
        return EXIT_FAILED
    log_lines = configure_logs(process.settings)
    try:
        return await work(process)
    except (ModelError, SettingsError) as error:
        process.channel.tell(Failed(Fault.of(error)))
        return EXIT_FAILED
    except Exception:  # noqa: BLE001 - the supervisor sees the exit status, the log the error
        _log.exception("child process failed")
        return EXIT_FAILED
    finally:
        process.on_orphaned = lambda: None  # it ends anyway
        process.channel.close()
        log_lines.drain(FLUSH_S)
