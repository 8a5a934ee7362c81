"""Process tree of a server, from /proc (Linux), and its CPU time."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ASK_EVERY_S = 0.2
PROC = Path("/proc")
NAME_AT, PARENT_AT, USER_AT, SYSTEM_AT, BEGAN_AT = 1, 3, 13, 14, 21
"""Fields of /proc/PID/stat, counted from 0. Source: proc(5)."""
SOCKET_AT = 9  # field of /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Process:
    """One process, identified by process ID and start time."""

    pid: int
    parent: int
    began: str
    name: str
    cpu_s: float


def tree(root: int) -> list[Process]:
    """Return a process and all its descendants."""
    by_parent: dict[int, list[Process]] = {}
    processes: list[Process] = []
    for process in _all():
        by_parent.setdefault(process.parent, []).append(process)
        if process.pid == root:
            processes.append(process)
    for process in processes:  # grows during the iteration
        processes += by_parent.get(process.pid, [])
    return processes


def cpu_s(root: int) -> float:
    """Return the CPU seconds of a process and all its descendants."""
    return sum(process.cpu_s for process in tree(root))


def cpu_by_name(processes: list[Process]) -> Counter[str]:
    """Return CPU seconds by process name."""
    spent: Counter[str] = Counter()
    for process in processes:
        spent[process.name] += process.cpu_s  # type: ignore[assignment]  # a Counter adds floats as well
    return spent


def connections(pid: int) -> int:
    """Return the number of open TCP sockets of a process; 0 if it has ended. Source: proc(5), /proc/net/tcp."""
    rows = (PROC / "net" / "tcp").read_text(encoding="ascii").splitlines()[1:]
    tcp = {f"socket:[{row.split()[SOCKET_AT]}]" for row in rows}
    count = 0
    with contextlib.suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                count += str(descriptor.readlink()) in tcp
    return count


def left(processes: Sequence[Process], within_s: float) -> list[Process]:
    """Return those that still run after `within_s`, at once if none does."""
    end_s = time.monotonic() + within_s
    while True:
        remain = [process for process in processes if any(now.began == process.began for now in tree(process.pid))]
        if not remain or time.monotonic() > end_s:
            return remain
        time.sleep(ASK_EVERY_S)


def _all() -> Iterator[Process]:
    ticks = os.sysconf("SC_CLK_TCK")
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # the process has ended
            head, _, rest = (folder / "stat").read_text().rpartition(") ")
            fields = [head.split(" (", 1)[0], head.split(" (", 1)[1], *rest.split()]
            cpu_s = (int(fields[USER_AT]) + int(fields[SYSTEM_AT])) / ticks
            name = _module(folder) or fields[NAME_AT]
            yield Process(int(fields[0]), int(fields[PARENT_AT]), fields[BEGAN_AT], name, cpu_s)


def _module(folder: Path) -> str:
    """Return the module run by `python -m`, without its packages; empty for other programs."""
    words = (folder / "cmdline").read_text(errors="replace").split("\0")
    return words[words.index("-m") + 1].rpartition(".")[2] if "-m" in words[:-1] else ""
