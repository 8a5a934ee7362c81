"""Protocol of the Python drivers: scenarios in, events out, one JSON line each. Only the standard library."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

Scenario = Callable[..., Awaitable[None]]
Step = tuple[Any, ...]

_out = os.fdopen(os.dup(1), "w", buffering=1)


def tell(event: str, **more: Any) -> None:
    """Report an event that the client's user sees."""
    _out.write(json.dumps({"event": event, **more}) + "\n")


class Happened:
    """Counts events by name, for steps that wait for one."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._news = asyncio.Event()

    def note(self, event: str) -> None:
        """Count an event."""
        self._seen[event] = self._seen.get(event, 0) + 1
        self._news.set()

    async def wait(self, event: str, times: int = 1) -> None:
        """Return when it has happened this many times."""
        while self._seen.get(event, 0) < times:
            self._news.clear()
            await self._news.wait()


def read_audio(path: str) -> bytes:
    """A file of raw audio."""
    return Path(path).read_bytes()


def main(**scenarios: Scenario) -> None:
    """Run scenarios by name until there are no more. What a client prints goes to standard error."""
    os.dup2(2, 1)
    asyncio.run(_serve(scenarios))


async def _serve(scenarios: Mapping[str, Scenario]) -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        scenario = json.loads(line)
        try:
            await scenarios[scenario.pop("scenario")](lines=lines, **scenario)
        except Exception:  # noqa: BLE001 - reported to the test
            tell("failed", why=traceback.format_exc())
        tell("done")
