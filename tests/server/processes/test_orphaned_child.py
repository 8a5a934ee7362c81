"""A child process that is still loading ends with its supervisor."""

from __future__ import annotations

import asyncio
import pickle
import socket
import sys
import threading
from typing import Any

import pytest

from server.cli.options import settings_from
from server.processes import front_end
from server.processes.child import EXIT_FAILED
from server.processes.control import ControlChannel, Parcel
from server.processes.messages import MESSAGES, Begin

LOADS = """
import asyncio, sys, time
from server.processes.child import run_child
from server.processes.messages import MESSAGES

async def work(process):
    print("loading", flush=True)
    await asyncio.to_thread(time.sleep, 60)

sys.exit(run_child(MESSAGES, work))
"""


async def nothing(parcel: Parcel) -> Parcel:
    return parcel


async def test_a_process_that_loads_ends_with_its_supervisor() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", LOADS, str(theirs.fileno())]
    process = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()], stdout=asyncio.subprocess.PIPE)
    theirs.close()
    channel = ControlChannel(ours, MESSAGES, answer=nothing, take=lambda _: None, on_closed=lambda: None)
    channel.tell(Begin(pickle.dumps(settings_from({}))))
    assert process.stdout is not None
    assert await process.stdout.readline() == b"loading\n"
    channel.close()
    assert await asyncio.wait_for(process.wait(), 10) == EXIT_FAILED


async def test_a_front_end_loads_off_its_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Channel:
        async def request(self, message: Any) -> bytes:
            return pickle.dumps(None)

    threads = []
    monkeypatch.setattr(front_end, "load_decoders", lambda *_: threads.append(threading.current_thread()))
    process: Any = type("Process", (), {"settings": settings_from({}), "channel": Channel()})
    await front_end._load(process, sources=None)  # type: ignore[arg-type]
    assert threads
    assert threading.main_thread() not in threads
