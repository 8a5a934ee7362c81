"""Runner of a part: each section in its own process with a time limit; every row is written at once.

If a section's process crashes, hangs or loses the device, it is restarted after the case that failed.
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

from tutti_asr_lab.benchmarks.gpu import records
from tutti_asr_lab.benchmarks.gpu.sections.child import BEGIN, FACTS, LOST, ROW

PARTS: dict[str, dict[str, float]] = {  # sections by importance, with a time limit in seconds
    "1": {"compile": 100, "probe": 60, "bits": 140, "correct": 180, "sanitizer": 90},
    "2": {"steps": 230, "recurrence": 200},
    "3": {"streams": 260, "recordings": 90, "training": 100},
}
HANG_S = 150.0  # without output; longer than the slowest compilation
GRACE_S = 10.0  # for a section to end by itself after its time limit
MOST_STARTS = 5  # starts of one section
TAIL = 12  # last lines kept of a process's output


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run: output file, device, time limit."""

    path: Path
    device: str
    seconds: float  # time limit of a part
    dry: bool = False
    commit: str = ""
    brief: bool = False


class Runner:
    """Runs sections and owns the document during a run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._results = records.read(settings.path)

    def run(self, part: str, sections: dict[str, float]) -> records.Results:
        """Run these sections with their time limits, within the part's limit; returns the whole document."""
        ends_s = time.monotonic() + self._settings.seconds
        self._results.runs.append(records.Run(part, self._facts(), self._settings.dry))
        self._write()
        for section, most_s in sections.items():
            left_s = ends_s - time.monotonic()
            if left_s < GRACE_S:
                self._append(section, {}, {}, "not run: the part's time was up")
                continue
            self._section(section, min(most_s, left_s - GRACE_S / 2))
        self._note_clocks()
        return self._results

    def _facts(self) -> dict[str, Any]:
        lines = _Child(["facts", "--device", self._settings.device, "--commit", self._settings.commit])
        found = [json.loads(line.removeprefix(FACTS)) for line in lines.until(HANG_S) if line.startswith(FACTS)]
        if not found:
            raise RuntimeError(f"cannot query the device: {' / '.join(lines.tail)}")
        facts: dict[str, Any] = found[0]
        return facts

    def _note_clocks(self) -> None:
        from tutti_asr_lab.benchmarks.gpu.machine import clocks

        run = self._results.runs[-1]
        self._results.runs[-1] = dataclasses.replace(run, machine=run.machine | {"clocks_after": clocks()})
        self._write()

    def _section(self, section: str, seconds: float) -> None:
        """Run the section; while there is time, restart it after a case at which its process crashed or hung."""
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
        """Run one process; returns the index of the case at which it failed, None if it completed."""
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
        at, case, reported = first, {}, True
        for line in child.until(seconds + GRACE_S):
            if line.startswith(BEGIN):
                number, _, text = line.removeprefix(BEGIN).partition(" ")
                at, case, reported = int(number), json.loads(text), False
            elif line.startswith(ROW):
                row = json.loads(line.removeprefix(ROW))
                self._append(section, row["case"], row["values"], row["error"])
                reported = True
        if child.code == 0:
            return None
        if not reported or child.code != LOST:
            output = " / ".join(child.tail)[-300:]
            self._append(section, {} if reported else case, {}, f"the process ended, {child.ending}: {output}")
        return at

    def _append(self, section: str, case: records.Case, values: records.Values, error: str) -> None:
        row = records.Row(len(self._results.runs) - 1, section, case, values, error)
        self._results.rows.append(row)
        self._write()
        result = error or " ".join(f"{name}={value}" for name, value in values.items())
        named = " ".join(f"{name}={value}" for name, value in case.items())
        print(f"{section}: {named}: {result}"[:220], flush=True)  # noqa: T201 - progress

    def _write(self) -> None:
        records.write(self._results, self._settings.path)


class _Child:
    """Child process of this program; its output is read line by line, and it is killed if there is none."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-u", "-m", "tutti_asr_lab.benchmarks.gpu", *arguments]
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
        """Exit code, None while it runs."""
        return self._process.returncode

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, seconds: float) -> Iterator[str]:
        """Yield its output lines for at most `seconds`; stops after `HANG_S` without a line."""
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
