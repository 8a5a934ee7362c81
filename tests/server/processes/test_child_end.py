"""The end of a child: one that is still starting is killed, as it takes no messages; one that works is asked."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from server.errors import EngineDead
from server.processes import children
from server.processes.children import Child, Role
from server.processes.messages import StopNow
from tests.server.processes.children import FakeChannel


async def sleeping() -> Child:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    child = Child(Role.FRONT_END, 1, process)
    child.channel = FakeChannel()  # type: ignore[assignment]
    return child


@pytest.mark.parametrize("state", ["starting", "failed", "canceled"])
async def test_a_child_that_did_not_start_is_killed_at_once(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    monkeypatch.setattr(children, "STOP_S", 60.0)
    child = await sleeping()
    if state == "failed":
        child.ready.set_exception(EngineDead("it could not start"))
    elif state == "canceled":
        child.ready.cancel()
    await asyncio.wait_for(child.stop(), 20.0)
    assert child.process.returncode == -signal.SIGKILL


async def test_a_child_that_works_is_asked() -> None:
    child = await sleeping()
    child.ready.set_result(None)
    stopping = asyncio.ensure_future(child.stop())
    await asyncio.sleep(0)
    assert child.process.returncode is None
    assert [type(message) for message, _ in child.channel.sent] == [StopNow]  # type: ignore[attr-defined]
    child.kill()
    await asyncio.wait_for(stopping, 20.0)
