"""Drives clients in separate environments, each with a small program that reads and writes JSON lines."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.ecosystem.environments import BUILD, NODE, is_made, python_of
from tests.support.needs import missing

HERE = Path(__file__).parent
WITHIN_S = 45.0  # for a scenario: the longest waits for a client's own back-off twice
STOP_WITHIN_S = 5.0
Event = dict[str, Any]


def need(name: str) -> Path:
    """Return the folder of an environment. If it is missing or outdated, the test is skipped; in CI it fails."""
    if not is_made(name):
        missing(f"no {name} environment; make it: python tests/ecosystem/environments.py {name}")
    return BUILD / name


class Driver:
    """A client's driver program: runs scenarios, one at a time, and reports the events that the client's user sees."""

    def __init__(self, command: Sequence[str | Path], **variables: str) -> None:
        self._command = list(map(str, command))
        self._variables = variables

    def __enter__(self) -> Self:
        self._busy = False
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | self._variables,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="driver")
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._errors.close()

    def begin(self, scenario: str, **arguments: Any) -> None:
        """Start a scenario, a function of the program. An unfinished one ends with its process."""
        if self._busy:
            self._process.kill()
            self.__exit__()
            self.__enter__()
        self._busy = True
        self.say(scenario=scenario, **arguments)

    def say(self, **line: Any) -> None:
        """Send the program a message."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def until(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Return the events up to the first matching one."""
        deadline_s = time.monotonic() + WITHIN_S
        events: list[Event] = []
        while not events or not wanted(events[-1]):
            try:
                event = self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                event = None
            assert event is not None, f"{events}\n{self.complaints}"
            assert event["event"] != "failed", f"{event['why']}\n{self.complaints}"
            events.append(event)
        return events

    def rest(self) -> list[Event]:
        """Return the events up to the end of the scenario."""
        events = self.until(lambda event: event["event"] == "done")[:-1]
        self._busy = False
        return events

    def run(self, scenario: str, **arguments: Any) -> list[Event]:
        """Run a scenario; return all its events."""
        self.begin(scenario, **arguments)
        return self.rest()

    @property
    def complaints(self) -> str:
        """Return what the program and its client printed to standard error."""
        return os.pread(self._errors.fileno(), 2**20, 0).decode(errors="replace")[-4_000:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)


def python_driver(name: str) -> Driver:
    """The driver of a Python client."""
    return Driver([python_of(need(name)), "-u", HERE / "drivers" / f"{name}_stt.py"])


def node_driver() -> Driver:
    """The driver of the clients for node."""
    folder = need(NODE)
    return Driver(["node", HERE / "drivers" / "deepgram_node.cjs"], NODE_PATH=str(folder / "node_modules"))
