"""Runs the sections of a part, each in a process of its own under a deadline, and writes every row as it comes.

A section whose process ends early, hangs or loses the device is started again behind the case at fault.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.benchmarks.gpu import records
from loadtest.benchmarks.gpu.sections.child import BEGIN, FACTS, LOST, ROW

PARTS: dict[str, dict[str, float]] = {  # sections in the order of their value, with the most seconds of each
    "1": {"compile": 100, "probe": 60, "bits": 140, "correct": 180, "sanitizer": 90},
    "2": {"steps": 230, "recurrence": 200, "products": 60},
    "3": {"streams": 260, "catchup": 90, "recordings": 90},
}
HANG_S = 150.0  # without a line: more than the slowest compilation takes
GRACE_S = 10.0  # for a section to end by itself after its time
MOST_STARTS = 5  # of one section
TAIL = 12  # lines of a process that ended badly


@dataclass(frozen=True, slots=True)
class Settings:
    """One run: where it writes, on what, how long."""

    path: Path
    device: str
    seconds: float  # of a part
    dry: bool = False
    commit: str = ""
    brief: bool = False


class Runner:
    """Owns the document while a run goes on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._results = records.read(settings.path)

    def run(self, part: str, sections: dict[str, float]) -> records.Results:
        """Run these sections, each for at most so many seconds, within the part's; returns the whole document."""
        ends_s = time.monotonic() + self._settings.seconds
        self._results.runs.append(records.Run(part, self._facts(), self._settings.dry))
        self._write()
        for section, most_s in sections.items():
            left_s = ends_s - time.monotonic()
            if left_s < GRACE_S:
                self._append(section, {}, {}, "not run: the part's time had ended")
                continue
            self._section(section, min(most_s, left_s - GRACE_S / 2))
        self._note_clocks()
        return self._results

    def _facts(self) -> dict[str, Any]:
        lines = _Child(["facts", "--device", self._settings.device, "--commit", self._settings.commit])
        found = [json.loads(line.removeprefix(FACTS)) for line in lines.until(HANG_S) if line.startswith(FACTS)]
        if not found:
            raise RuntimeError(f"the device does not answer: {' / '.join(lines.tail)}")
        facts: dict[str, Any] = found[0]
        return facts

    def _note_clocks(self) -> None:
        from loadtest.benchmarks.gpu.machine import clocks

        run = self._results.runs[-1]
        self._results.runs[-1] = dataclasses.replace(run, machine=run.machine | {"clocks_after": clocks()})
        self._write()

    def _section(self, section: str, seconds: float) -> None:
        """Start the section, and again behind the case that ended or held up its process, while there is time."""
        ends_s, first = time.monotonic() + seconds, 0
        for _ in range(MOST_STARTS):
            left_s = ends_s - time.monotonic()
            if left_s < GRACE_S and first:
                return
            at = self._start(section, first, left_s)
            if at is None:
                return
            first = at + 1

    def _start(self, section: str, first: int, seconds: float) -> int | None:
        """One process; returns the case at which it failed, None if it came to its end."""
        options = ["--first", str(first), "--seconds", f"{seconds:.0f}", "--device", self._settings.device]
        child = _Child(
            [
                "section",
                section,
                *options,
                *(["--dry"] if self._settings.dry else []),
                *(["--brief"] if self._settings.brief else []),
            ]
        )
        at, case, answered = first, {}, True
        for line in child.until(seconds + GRACE_S):
            if line.startswith(BEGIN):
                number, _, text = line.removeprefix(BEGIN).partition(" ")
                at, case, answered = int(number), json.loads(text), False
            elif line.startswith(ROW):
                row = json.loads(line.removeprefix(ROW))
                self._append(section, row["case"], row["values"], row["error"])
                answered = True
        if child.code == 0:
            return None
        if not answered or child.code != LOST:
            said = " / ".join(child.tail)[-300:]
            self._append(section, {} if answered else case, {}, f"the process ended, {child.ending}: {said}")
        return at

    def _append(self, section: str, case: records.Case, values: records.Values, error: str) -> None:
        row = records.Row(len(self._results.runs) - 1, section, case, values, error)
        self._results.rows.append(row)
        self._write()
        said = error or " ".join(f"{name}={value}" for name, value in values.items())
        named = " ".join(f"{name}={value}" for name, value in case.items())
        print(f"{section}: {named}: {said}"[:220], flush=True)  # noqa: T201 - what is happening, for a log

    def _write(self) -> None:
        records.write(self._results, self._settings.path)


class _Child:
    """A process of this program whose lines are read as they come, and which is ended when it says nothing."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-u", "-m", "loadtest.benchmarks.gpu", *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - this program
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.ending = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """Exit code, once it has ended."""
        return self._process.returncode

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, seconds: float) -> Iterator[str]:
        """Its lines as they come, for at most so many seconds, and no longer than `HANG_S` without one."""
        ends_s = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, min(HANG_S, ends_s - time.monotonic())))
            except queue.Empty:
                self.ending = "out of time" if time.monotonic() >= ends_s else f"silent for {HANG_S:g} s"
                self._process.kill()
                break
            if line is None:
                break
            self.tail.append(line)
            yield line
        self._process.wait()
        self.ending = self.ending or f"exit code {self._process.returncode}"
